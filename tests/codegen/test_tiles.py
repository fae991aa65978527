"""Axis order, tile shapes and index width."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
import torch

from optpass.autotune.arch import target
from optpass.codegen.expr import Symbol, axis_symbol, floor_div, mod, value_symbol
from optpass.codegen.ir import Axis, Buffer, Compute, Index, Kernel, Load, Reduce, Store
from optpass.codegen.tiles import arrange, index_bits, tile

pytestmark = pytest.mark.null

R0, R1, R2, C0 = (axis_symbol(n) for n in ("r0", "r1", "r2", "c0"))
F32 = torch.float32
SM90 = target("sm_90")


def copy(shape: tuple[int, ...], load, store, dtype: torch.dtype = F32) -> Kernel:
    rows = tuple(Axis(s, n) for s, n in zip((R0, R1, R2), shape))
    buffers = (Buffer("a", dtype), Buffer("out", dtype, True))
    return Kernel("copy", rows, (), buffers, (), (), (Load("a", load, F32), Store("out", store, 0)))


def reduction(rows: int, cols, index, sizes: tuple[Symbol, ...] = ()) -> Kernel:
    body = (Load("a", index, F32), Reduce("sum", 0, F32), Store("out", R0, 1))
    buffers = (Buffer("a", torch.bfloat16), Buffer("out", F32, True))
    return Kernel("fold", (Axis(R0, rows),), (Axis(C0, cols),), buffers, sizes, (), body)


def chosen(kernel: Kernel):
    return tile(arrange(kernel), SM90)


def test_contiguous_axes_merge():
    kernel = arrange(copy((8, 16, 32), R0 * 512 + R1 * 32 + R2, R0 * 512 + R1 * 32 + R2))
    assert [a.size for a in kernel.rows] == [4096]


def test_axes_follow_the_memory_of_the_output():
    """A channels-last copy: logical order n, c, h; memory order n, h, c."""
    index = R0 * 50 + R2 * 5 + R1
    kernel = arrange(copy((4, 5, 10), index, index))
    assert [a.size for a in kernel.rows] == [200]


def test_large_pointwise_kernel_has_one_dimension():
    choice = chosen(copy((1 << 20,), R0, R0))
    assert (choice.y, choice.x_block, choice.num_warps) == ((), 1024, 4)


def test_small_pointwise_kernel_has_more_programs():
    assert chosen(copy((4096,), R0, R0)).x_block == 128


def test_transpose_has_two_dimensions():
    choice = chosen(copy((3, 500, 700), R0 * 350000 + R2 * 500 + R1, R0 * 350000 + R1 * 700 + R2))
    assert [a.symbol for a in choice.outer + choice.y + choice.x] == [R0, R1, R2]
    assert (choice.y_block, choice.x_block) == (32, 32)


def test_broadcast_keeps_rows_apart_where_they_fill_a_block():
    kept = chosen(copy((4096, 1000), R1, R0 * 1000 + R1))
    assert [a.symbol for a in kept.outer] == [R0] and kept.x_block == 1024
    # 1030 elements would fill half of two blocks.
    assert chosen(copy((4096, 1030), R1, R0 * 1030 + R1)).x == (Axis(R0, 4096), Axis(R1, 1030))


@pytest.mark.parametrize("cols,looped,rows", [(64, False, 16), (4096, False, 1), (16384, False, 1), (50257, True, 1)])
def test_rows_stay_in_registers_where_they_fit(cols: int, looped: bool, rows: int):
    choice = chosen(reduction(65536, cols, R0 * cols + C0))
    assert (choice.looped, choice.y_block) == (looped, rows)


def test_rows_of_unknown_length_are_looped():
    n = Symbol("s0", integer=True, positive=True)
    choice = chosen(reduction(512, n, R0 * n + C0, (n,)))
    assert choice.looped and choice.index_bits == 64


def test_column_reduction_takes_neighbouring_rows():
    choice = chosen(reduction(4096, 16384, C0 * 4096 + R0))
    assert choice.looped and choice.y_block >= 16 and choice.y_block * choice.x_block == 2048


def test_reduction_of_single_values_becomes_a_copy():
    kernel = arrange(reduction(7, 1, R0 + C0))
    assert not kernel.cols and not kernel.reductions


@pytest.mark.parametrize(
    "index,bits",
    [
        (R0 * 2**20 + R1, 32),
        (R0 * 2**22 + R1, 64),
        (mod(R0 * 2**20 + R1, sympy.Integer(1000)), 32),
        (mod(R0 * 2**22 + R1 * 3, sympy.Integer(1000)), 64),
        (floor_div(R0 * 3 + R1, sympy.Integer(7)), 32),
        (value_symbol(0) * 1024 + R1, 32),
        (Symbol("s0", integer=True, positive=True) * R0, 64),
    ],
)
def test_index_width(index, bits: int):
    body = (Index(R1), Compute("neg", (0,), torch.int64), Load("a", index, F32), Store("out", R0, 2))
    kernel = replace(copy((1000, 1000), R0, R0), body=body)
    assert index_bits(kernel) == bits


def test_many_iterations_need_wide_indices():
    assert index_bits(copy((1 << 16, 1 << 16), R1, R1)) == 64
