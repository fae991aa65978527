"""Iteration spaces of printed Triton kernels: sizes, strides, broadcasts, masks, indirect loads, parameters."""

from __future__ import annotations

import math

import pytest
import sympy
import torch

from optpass.codegen.expr import Symbol, axis_symbol, floor_div, mod, value_symbol
from optpass.codegen.ir import (
    Axis,
    Buffer,
    Compute,
    Const,
    Index,
    Kernel,
    Load,
    Scalar,
    Store,
)
from optpass.testing.triton_check import check, run_interpreted

pytestmark = pytest.mark.triton

R0, R1, R2, C0, C1 = (axis_symbol(n) for n in ("r0", "r1", "r2", "c0", "c1"))
F32, F64, I32, I64, BOOL = torch.float32, torch.float64, torch.int32, torch.int64, torch.bool


@pytest.mark.parametrize("n", [0, 1, 2, 127, 1024, 1025, 5000])
def test_one_dimension(n: int):
    body = (Load("a", R0, F32), Load("b", 2 * R0 + 1, F32), Compute("add", (0, 1), F32), Store("out", R0, 2))
    buffers = (Buffer("a", F32), Buffer("b", F32), Buffer("out", F32, True))
    kernel = Kernel("add", (Axis(R0, n),), (), buffers, (), (), body)
    check(kernel, {"a": torch.randn(n), "b": torch.randn(2 * n), "out": torch.empty(n)})


def test_no_dimension():
    body = (Load("a", sympy.S.Zero, F32), Const(2.0, F32), Compute("mul", (0, 1), F32), Store("out", sympy.S.Zero, 2))
    kernel = Kernel("double", (), (), (Buffer("a", F32), Buffer("out", F32, True)), (), (), body)
    check(kernel, {"a": torch.randn(1), "out": torch.empty(1)})


@pytest.mark.parametrize("shape", [(7, 5), (33, 70), (100, 3), (1, 64), (64, 1), (65, 1030)])
def test_broadcast_and_transpose(shape: tuple[int, int]):
    """``out[i, j] = a[j, i] + row[j] + column[i] + single``."""
    m, n = shape
    body = (
        Load("a", R1 * m + R0, F32),
        Load("row", R1, F32),
        Load("column", R0, F32),
        Load("single", sympy.S.Zero, F32),
        Compute("add", (0, 1), F32),
        Compute("add", (4, 2), F32),
        Compute("add", (5, 3), F32),
        Store("out", R0 * n + R1, 6),
    )
    buffers = (*(Buffer(b, F32) for b in ("a", "row", "column", "single")), Buffer("out", F32, True))
    kernel = Kernel("spread", (Axis(R0, m), Axis(R1, n)), (), buffers, (), (), body)
    tensors = {"a": torch.randn(n, m), "row": torch.randn(n), "column": torch.randn(m), "single": torch.randn(1)}
    check(kernel, {**tensors, "out": torch.empty(m, n)})


def test_batched_transpose_of_padded_rows():
    b, m, n = 3, 17, 41
    body = (Load("a", R0 * 2000 + R2 * 48 + R1, torch.int16), Store("out", (R0 * m + R1) * n + R2, 0))
    kernel = Kernel(
        "turn",
        (Axis(R0, b), Axis(R1, m), Axis(R2, n)),
        (),
        (Buffer("a", torch.int16), Buffer("out", torch.int16, True)),
        (),
        (),
        body,
    )
    check(
        kernel,
        {"a": torch.randint(-99, 99, (6000,), dtype=torch.int16), "out": torch.zeros(b * m * n, dtype=torch.int16)},
    )


def test_channels_last_output_and_flip():
    """Rows in logical order n, c, h; memory of the output in order n, h, c; the input is read backwards."""
    n, c, h = 2, 5, 30
    body = (Load("a", (R0 * c + R1) * h + (h - 1 - R2), F32), Store("out", (R0 * h + R2) * c + R1, 0))
    kernel = Kernel(
        "relay", (Axis(R0, n), Axis(R1, c), Axis(R2, h)), (), (Buffer("a", F32), Buffer("out", F32, True)), (), (), body
    )
    check(kernel, {"a": torch.randn(n * c * h), "out": torch.empty(n * c * h)})


def test_index_arithmetic():
    n = 100
    place = mod(R0 * 7 + 3, sympy.Integer(50)) + floor_div(R0, 3)
    below = floor_div(R0 - 37, 4) + 10
    body = (Load("a", place, F32), Index(below), Store("out", R0, 0), Store("index", R0, 1))
    buffers = (Buffer("a", F32), Buffer("out", F32, True), Buffer("index", I64, True))
    kernel = Kernel("indices", (Axis(R0, n),), (), buffers, (), (), body)
    check(kernel, {"a": torch.randn(n), "out": torch.empty(n), "index": torch.empty(n, dtype=I64)})


def test_masked_load():
    """Memory is not touched where the mask is false, also where the index varies along fewer axes than the mask."""
    body = (
        Index(R0),
        Const(4, I64),
        Compute("lt", (0, 1), BOOL),
        Load("a", R0, F32, 2, -math.inf),
        Load("half", R1, F32, 2, 1e9),
        Load("flag", R0, BOOL, 2, True),
        Store("x", R0 * 3 + R1, 3),
        Store("y", R0 * 3 + R1, 4),
        Store("z", R0 * 3 + R1, 5),
    )
    buffers = (
        Buffer("a", F32),
        Buffer("half", torch.float16),
        Buffer("flag", BOOL),
        Buffer("x", F32, True),
        Buffer("y", F32, True),
        Buffer("z", BOOL, True),
    )
    kernel = Kernel("pad", (Axis(R0, 9), Axis(R1, 3)), (), buffers, (), (), body)
    tensors = {"a": torch.randn(4), "half": torch.randn(3).half(), "flag": torch.tensor([False, True, False, False])}
    check(kernel, {**tensors, "x": torch.empty(27), "y": torch.empty(27), "z": torch.empty(27, dtype=BOOL)})


def gather(rows: int, wrap: bool) -> Kernel:
    body = (
        Load("index", R0, I64),
        Compute("check_index", (0,), I64, (rows, wrap, "index out of range")),
        Load("table", value_symbol(1) * 4 + R1, F32),
        Store("out", R0 * 4 + R1, 2),
    )
    buffers = (Buffer("index", I64), Buffer("table", F32), Buffer("out", F32, True))
    return Kernel("gather", (Axis(R0, 6), Axis(R1, 4)), (), buffers, (), (), body)


def test_indirect_load_wraps_negative_indices():
    index = torch.tensor([0, -1, 9, 3, -10, 2])
    check(gather(10, True), {"index": index, "table": torch.randn(10, 4), "out": torch.empty(6, 4)})


@pytest.mark.parametrize("bad,wrap", [(10, True), (-11, True), (-1, False)])
def test_index_out_of_range_is_reported(bad: int, wrap: bool):
    index = torch.tensor([0, 1, bad, 3, 0, 2])
    with pytest.raises(RuntimeError, match="index out of range"):
        run_interpreted(gather(10, wrap), {"index": index, "table": torch.randn(10, 4), "out": torch.empty(6, 4)})


def test_symbolic_sizes_and_scalars():
    m, n = Symbol("s0", integer=True, positive=True), Symbol("s7", integer=True, positive=True)
    body = (
        Load("a", R0 * n + R1, F32),
        Scalar("scale", F64),
        Compute("cast", (1,), F32),
        Compute("mul", (0, 2), F32),
        Index(R0 * n + m),
        Compute("cast", (4,), F32),
        Compute("add", (3, 5), F32),
        Scalar("shift", I64),
        Compute("cast", (7,), F32),
        Compute("add", (6, 8), F32),
        Scalar("on", BOOL),
        Const(0.0, F32),
        Compute("where", (10, 9, 11), F32),
        Store("out", R1 * m + R0, 12),
    )
    kernel = Kernel(
        "dynamic",
        (Axis(R0, m), Axis(R1, n)),
        (),
        (Buffer("a", F32), Buffer("out", F32, True)),
        (m, n),
        (Scalar("scale", F64), Scalar("shift", I64), Scalar("on", BOOL)),
        body,
    )
    for sizes in ((3, 5), (70, 11), (1, 1), (0, 4)):
        count = sizes[0] * sizes[1]
        tensors = {"a": torch.randn(count), "out": torch.empty(count)}
        check(kernel, tensors, dict(zip((m, n), sizes)), {"scale": 0.5, "shift": -3, "on": True})
