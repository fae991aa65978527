"""The interpreter against the number model that `ir` states: it is what every printer is measured by."""

from __future__ import annotations

import math

import pytest
import sympy
import torch

from optpass.codegen import interpret
from optpass.codegen.expr import Symbol, axis_symbol, value_symbol
from optpass.codegen.ir import Axis, Buffer, Builder, Compute, Const, Index, Kernel, Load, Part, Reduce, Scalar, Store

pytestmark = pytest.mark.null

R, C = axis_symbol("r0"), axis_symbol("c0")


def run(build, tensors, rows=(), cols=(), sizes=None, scalars=None, outputs=("out",)):
    builder = Builder()
    build(builder.emit)
    buffers = tuple(Buffer(n, t.dtype, n in outputs) for n, t in tensors.items())
    axes = lambda names, symbols: tuple(Axis(s, sympy.sympify(n)) for s, n in zip(symbols, names))
    kinds = tuple(Scalar(n, torch.float64 if isinstance(v, float) else torch.int64) for n, v in (scalars or {}).items())
    kernel = Kernel("k", axes(rows, [R]), axes(cols, [C]), buffers, tuple(sizes or {}), kinds, tuple(builder.body))
    interpret.run(kernel, tensors, sizes, scalars)
    return [tensors[n] for n in outputs]


def unary(op, x, dtype, out, attr=None):
    def build(emit):
        v = emit(Load("x", R, torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype))
        emit(Store("out", R, emit(Compute(op, (v,), dtype, attr))))

    return run(build, {"x": x, "out": torch.zeros(len(x), dtype=out)}, rows=[len(x)])[0]


def test_integers_wrap():
    x = torch.tensor([127, -128, 100], dtype=torch.int8)

    def build(emit):
        v = emit(Load("x", R, torch.int8))
        emit(Store("out", R, emit(Compute("add", (v, v), torch.int8))))

    assert run(build, {"x": x, "out": torch.zeros(3, dtype=torch.int8)}, rows=[3])[0].tolist() == [-2, 0, -56]


def test_casts():
    x = torch.tensor([-1.7, 1.7, 0.2, math.nan])
    assert unary("cast", x[:3], torch.int64, torch.int64).tolist() == [-1, 1, 0]
    assert unary("cast", x, torch.bool, torch.bool).tolist() == [True, True, True, True]


def test_round_is_to_even_and_stays_float32():
    x = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -math.inf, 3.4e38])
    out = unary("round", x, torch.float32, torch.float32, torch.bfloat16)
    assert torch.equal(out, x.bfloat16().float()) and out[0] == 1 and out[1] == 1 + 2**-6


def test_stores_round_and_loads_widen():
    x = torch.randn(9).bfloat16()
    assert torch.equal(unary("abs", x, torch.float32, torch.bfloat16), x.abs())


@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin", "sum", "prod"])
@pytest.mark.parametrize(
    "values", [[1.0, 5.0, 5.0, -2.0, -2.0], [1.0, math.nan, 7.0, math.nan], [-math.inf, -math.inf]]
)
def test_reductions(op, values):
    x = torch.tensor(values)
    dtype = torch.int64 if op.startswith("arg") else torch.float32

    def build(emit):
        emit(Store("out", sympy.S.Zero, emit(Reduce(op, emit(Load("x", C, torch.float32)), dtype))))

    (out,) = run(build, {"x": x, "out": torch.zeros(1, dtype=dtype)}, cols=[len(x)])
    expected = getattr(x, f"a{op}" if op in ("max", "min") else op)()
    torch.testing.assert_close(out[0], expected, rtol=0, atol=0, equal_nan=True)


def test_welford():
    x = torch.randn(50) + 100

    def build(emit):
        pair = emit(Reduce("welford", emit(Load("x", C, torch.float32)), torch.float32))
        for k in range(2):
            emit(Store("out", sympy.Integer(k), emit(Part(pair, k, torch.float32))))

    (out,) = run(build, {"x": x, "out": torch.zeros(2)}, cols=[50])
    torch.testing.assert_close(out, torch.stack([x.mean(), ((x - x.mean()) ** 2).sum()]))


def test_memory_outside_a_mask_is_not_touched():
    def build(emit):
        inside = emit(Compute("lt", (emit(Index(R)), emit(Const(2, torch.int64))), torch.bool))
        emit(Store("out", R, emit(Load("x", R * 1000, torch.float32, inside, 7))))

    (out,) = run(build, {"x": torch.arange(1001.0), "out": torch.zeros(4)}, rows=[4])
    assert out.tolist() == [0, 1000, 7, 7]


@pytest.mark.parametrize("wrap, indices, result", [(False, [1, 0], [11, 10]), (True, [-1, 1], [12, 11])])
def test_checked_indices(wrap, indices, result):
    def build(emit):
        v = emit(Load("i", R, torch.int64))
        at = emit(Compute("check_index", (v,), torch.int64, (sympy.Integer(3), wrap, "index out of range")))
        emit(Store("out", R, emit(Load("x", value_symbol(at), torch.int64))))

    tensors = {"i": torch.tensor(indices), "x": torch.tensor([10, 11, 12]), "out": torch.zeros(2, dtype=torch.int64)}
    assert run(build, tensors, rows=[2])[0].tolist() == result
    with pytest.raises(IndexError, match="index out of range"):
        run(build, {**tensors, "i": torch.tensor([0, 3])}, rows=[2])
    with pytest.raises(IndexError):
        run(build, {**tensors, "i": torch.tensor([0, -4])}, rows=[2])


def test_sizes_and_scalars():
    s = Symbol("s0", integer=True, positive=True)

    def build(emit):
        scale = emit(Compute("cast", (emit(Scalar("scale", torch.float64)),), torch.float32))
        emit(Store("out", R, emit(Compute("mul", (emit(Load("x", s - 1 - R, torch.float32)), scale), torch.float32))))

    (out,) = run(build, {"x": torch.arange(5.0), "out": torch.zeros(5)}, rows=[s], sizes={s: 5}, scalars={"scale": 0.5})
    assert out.tolist() == [2, 1.5, 1, 0.5, 0]


def test_random_numbers_are_philox():
    """The known answer of Philox-4x32-10 for a key and a counter of zeros (Random123, kat_vectors)."""
    out = interpret.philox_uniform(torch.tensor(0), torch.tensor(0))
    assert out.item() == (0x6627E8D5 >> 8) * 2.0**-24
    many = interpret.philox_uniform(torch.tensor(3), torch.arange(100_000))
    assert many.min() >= 0 and many.max() < 1
    assert abs(many.mean() - 0.5) < 5 * (1 / 12 / 1e5) ** 0.5
