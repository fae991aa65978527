"""Reductions of printed Triton kernels: every operation, dtype and kind of tile, and mixes of levels."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import sympy
import torch

from optpass.autotune.arch import target
from optpass.codegen.expr import Symbol, axis_symbol
from optpass.codegen.ir import (
    REDUCE_OPS,
    Axis,
    Buffer,
    Compute,
    Const,
    Index,
    Kernel,
    Load,
    Part,
    Reduce,
    Store,
)
from optpass.codegen.tiles import Tile, arrange, tile
from optpass.testing.triton_check import check

pytestmark = pytest.mark.triton

R0, R1, R2, C0, C1 = (axis_symbol(n) for n in ("r0", "r1", "r2", "c0", "c1"))
F32, F64, I32, I64, BOOL = torch.float32, torch.float64, torch.int32, torch.int64, torch.bool


def widened(dtype: torch.dtype) -> torch.dtype:
    return F32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def row_reduction(op: str, rows: int, cols: int, dtype: torch.dtype, out: torch.dtype) -> Kernel:
    body = [Load("a", R0 * cols + C0, widened(dtype)), Reduce(op, 0, widened(out))]
    if op == "welford":
        body += [Part(1, 0, widened(out)), Part(1, 1, widened(out)), Store("out", R0, 2), Store("more", R0, 3)]
    else:
        body.append(Store("out", R0, 1))
    buffers = (Buffer("a", dtype), Buffer("out", out, True)) + ((Buffer("more", out, True),) if op == "welford" else ())
    return Kernel(f"rows_{op}", (Axis(R0, rows),), (Axis(C0, cols),), buffers, (), (), tuple(body))


def sample(op: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    if dtype == BOOL:
        return torch.rand(shape) < (0.1 if op == "any" else 0.9)
    if dtype.is_floating_point:
        return (1 + 0.1 * torch.randn(shape)).to(dtype) if op == "prod" else torch.randn(shape).to(dtype)
    return torch.randint(-50 if dtype.is_signed else 0, 50, shape, dtype=dtype)


REDUCTIONS = [
    (op, dtype, I64 if op.startswith("arg") or (not dtype.is_floating_point and op in ("sum", "prod")) else dtype)
    for op in REDUCE_OPS
    if op not in ("any", "all")
    for dtype in (F32, F64, torch.bfloat16, I32, I64, torch.int8, torch.uint8)
    if op != "welford" or dtype.is_floating_point
] + [("any", BOOL, BOOL), ("all", BOOL, BOOL), ("sum", BOOL, I64), ("max", BOOL, BOOL), ("min", BOOL, BOOL)]
TILES = {
    "one row": Tile(outer=(Axis(R0, 3),), x=(Axis(C0, 37),), x_block=64),
    "rows": Tile(y=(Axis(R0, 3),), x=(Axis(C0, 37),), y_block=2, x_block=64),
    "looped": Tile(outer=(Axis(R0, 3),), x=(Axis(C0, 37),), x_block=8, looped=True),
    "looped rows": Tile(y=(Axis(R0, 3),), x=(Axis(C0, 37),), y_block=4, x_block=16, looped=True, index_bits=64),
}


@pytest.mark.parametrize("choice", TILES)
@pytest.mark.parametrize("op,dtype,out", REDUCTIONS, ids=str)
def test_row_reduction(op: str, dtype: torch.dtype, out: torch.dtype, choice: str):
    tensors = {"a": sample(op, (3, 37), dtype), "out": torch.empty(3, dtype=out), "more": torch.empty(3, dtype=out)}
    # A sum in another order: n·u·Σ|a|, with n = 37; one rounding more where the result is narrow.
    unit = 2.0**-52 if dtype == F64 else 2.0**-23
    bound = 37 * unit * 37 if dtype.is_floating_point and op in ("sum", "prod", "welford") else 0.0
    check(row_reduction(op, 3, 37, dtype, out), tensors, choice=TILES[choice], rtol=bound, atol=bound)


@pytest.mark.parametrize("choice", TILES)
@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin", "sum"])
def test_special_values_in_reductions(op: str, choice: str):
    rows = torch.randn(3, 37)
    rows[0, [5, 30]] = math.nan
    rows[1] = -math.inf if "max" in op else math.inf
    rows[2, [7, 20]] = 50.0 if "max" in op else -50.0
    out = I64 if op.startswith("arg") else F32
    kernel = row_reduction(op, 3, 37, F32, out)
    check(kernel, {"a": rows, "out": torch.empty(3, dtype=out)}, choice=TILES[choice], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op,dtype,out", [r for r in REDUCTIONS if r[0] in ("sum", "prod", "any", "all")], ids=str)
@pytest.mark.parametrize("rows,cols", [(3, 0), (0, 5), (3, 1), (1, 1)])
def test_small_reduction_domains(op: str, dtype: torch.dtype, out: torch.dtype, rows: int, cols: int):
    check(
        row_reduction(op, rows, cols, dtype, out),
        {"a": sample(op, (rows, cols), dtype), "out": torch.empty(rows, dtype=out)},
    )


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows,cols", [(2, 100), (700, 30), (3, 1), (2, 5000), (1, 40000), (33, 257)])
def test_softmax(rows: int, cols: int, dtype: torch.dtype):
    place = R0 * cols + C0
    body = (
        Load("a", place, F32),
        Reduce("max", 0, F32),
        Compute("sub", (0, 1), F32),
        Compute("exp", (2,), F32),
        Reduce("sum", 3, F32),
        Compute("div", (3, 4), F32),
        Store("out", place, 5),
        Compute("log", (4,), F32),
        Compute("add", (7, 1), F32),
        Store("lse", R0, 8),
    )
    buffers = (Buffer("a", dtype), Buffer("out", dtype, True), Buffer("lse", F32, True))
    kernel = Kernel("softmax", (Axis(R0, rows),), (Axis(C0, cols),), buffers, (), (), body)
    tensors = {
        "a": torch.randn(rows, cols).to(dtype),
        "out": torch.empty(rows, cols, dtype=dtype),
        "lse": torch.empty(rows),
    }
    check(kernel, tensors, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def layer_norm(rows, cols, dtype: torch.dtype, sizes: tuple[Symbol, ...] = ()) -> Kernel:
    """Every level: columns only (weight), rows only (statistics), both; the input is overwritten."""
    place = R0 * cols + C0
    body = (
        Load("a", place, F32),
        Load("w", C0, F32),
        Reduce("welford", 0, F32),
        Part(2, 0, F32),
        Part(2, 1, F32),
        Index(cols),
        Compute("cast", (5,), F32),
        Compute("div", (4, 6), F32),
        Const(1e-5, F32),
        Compute("add", (7, 8), F32),
        Compute("rsqrt", (9,), F32),
        Compute("sub", (0, 3), F32),
        Compute("mul", (11, 10), F32),
        Compute("mul", (12, 1), F32),
        Store("a", place, 13),
        Reduce("max", 13, F32),
        Store("top", R0, 15),
        Store("mean", R0, 3),
        Compute("sub", (0, 15), F32),
        Store("rest", place, 18),
    )
    buffers = (
        Buffer("a", dtype, True),
        Buffer("w", F32),
        Buffer("top", F32, True),
        Buffer("mean", F32, True),
        Buffer("rest", F32, True),
    )
    return Kernel("norm", (Axis(R0, rows),), (Axis(C0, cols),), buffers, sizes, (), body)


def norm_tensors(rows: int, cols: int) -> dict[str, torch.Tensor]:
    statistics = {"top": torch.empty(rows), "mean": torch.empty(rows)}
    return {"a": torch.randn(rows, cols), "w": torch.randn(cols), **statistics, "rest": torch.empty(rows, cols)}


@pytest.mark.parametrize("rows,cols", [(5, 64), (3, 77), (1, 4100)])
@pytest.mark.parametrize("looped", [False, True])
def test_layer_norm_in_place(rows: int, cols: int, looped: bool):
    kernel = layer_norm(rows, sympy.Integer(cols), F32)
    choice = tile(arrange(kernel), target("sm_90"))
    if looped:
        choice = replace(choice, looped=True, x_block=32)
    check(kernel, norm_tensors(rows, cols), choice=choice, rtol=1e-5, atol=1e-5)


def test_symbolic_rows_and_columns():
    m, n = Symbol("s0", integer=True, positive=True), Symbol("s1", integer=True, positive=True)
    kernel = layer_norm(m, n, F32, (m, n))
    for rows, cols in ((3, 5), (2, 3000), (0, 3)):
        check(kernel, norm_tensors(rows, cols), {m: rows, n: cols}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["sum", "max", "argmax", "welford"])
@pytest.mark.parametrize("rows,cols", [(70, 40), (33, 5), (128, 300)])
def test_column_reduction(op: str, rows: int, cols: int):
    """Neighbouring rows lie next to each other in memory."""
    out = I64 if op == "argmax" else F32
    kernel = row_reduction(op, rows, cols, F32, out)
    kernel = replace(kernel, body=(Load("a", C0 * rows + R0, F32), *kernel.body[1:]))
    tensors = {"a": torch.randn(cols, rows), "out": torch.empty(rows, dtype=out), "more": torch.empty(rows, dtype=out)}
    check(kernel, tensors, rtol=1e-4, atol=1e-4)


def test_reduction_over_outer_and_inner_axes():
    """Statistics of each channel of [n, c, h]; two column axes that do not merge, positions in row-major order."""
    n, c, h = 4, 6, 35
    body = (
        Load("a", (C0 * c + R0) * h + C1, F32),
        Reduce("sum", 0, F32),
        Reduce("argmax", 0, I64),
        Store("sum", R0, 1),
        Store("at", R0, 2),
        Compute("sub", (0, 1), F32),
        Store("out", (C0 * c + R0) * h + C1, 5),
    )
    buffers = (Buffer("a", F32), Buffer("sum", F32, True), Buffer("at", I64, True), Buffer("out", F32, True))
    kernel = Kernel("channels", (Axis(R0, c),), (Axis(C0, n), Axis(C1, h)), buffers, (), (), body)
    tensors = {
        "a": torch.randn(n, c, h),
        "sum": torch.empty(c),
        "at": torch.empty(c, dtype=I64),
        "out": torch.empty(n, c, h),
    }
    check(kernel, tensors, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("n", [1, 100, 9000])
def test_reduction_to_a_scalar(n: int):
    body = (
        Load("a", C0, F32),
        Reduce("sum", 0, F32),
        Reduce("max", 0, F32),
        Const(1.0, F32),
        Reduce("sum", 3, F32),
        Store("out", sympy.S.Zero, 1),
        Store("out", sympy.S.One, 2),
        Store("out", sympy.Integer(2), 4),
    )
    kernel = Kernel("all", (), (Axis(C0, n),), (Buffer("a", F32), Buffer("out", F32, True)), (), (), body)
    check(kernel, {"a": torch.randn(n), "out": torch.empty(3)}, rtol=1e-4, atol=1e-4)


def test_reduction_of_what_does_not_vary_along_columns():
    body = (
        Load("a", R0, F32),
        Reduce("sum", 0, F32),
        Load("b", C0, F32),
        Reduce("argmax", 2, I64),
        Store("out", R0, 1),
        Store("at", R0, 3),
    )
    buffers = (Buffer("a", F32), Buffer("b", F32), Buffer("out", F32, True), Buffer("at", I64, True))
    kernel = Kernel("flat", (Axis(R0, 600),), (Axis(C0, 11),), buffers, (), (), body)
    tensors = {"a": torch.randn(600), "b": torch.randn(11), "out": torch.empty(600), "at": torch.empty(600, dtype=I64)}
    check(kernel, tensors, rtol=1e-5)
