"""The text of index expressions, of C-like values and of C++ kernels."""

from __future__ import annotations

import math
import re

import pytest
import sympy
import torch

from optpass.codegen.expr import Integer, Symbol, axis_symbol, value_symbol
from optpass.codegen.ir import Axis, Buffer, Builder, Compute, Kernel, Load, Reduce, Store
from optpass.codegen.loops import schedule
from optpass.codegen.printers.base import ExprPrinter, Writer
from optpass.codegen.printers.cpp import CppPrinter
from optpass.codegen.printers.cpp_module import module_source
from optpass.codegen.segment import Call, Scratch, Segment
from optpass.codegen.target import Target
from optpass.errors import UnsupportedOp
from optpass.torch_private import FloorDiv, Mod, PythonMod

pytestmark = pytest.mark.null

F32, I32, I64, BOOL = torch.float32, torch.int32, torch.int64, torch.bool
r0, r1, c0 = map(axis_symbol, ("r0", "r1", "c0"))
size, unknown = Symbol("s0", integer=True, positive=True), Symbol("u0", integer=True)
TARGET = Target("cpp", "cpu", "x86-64-avx512", units=2, vector_bytes=64, row_bytes=1 << 20)


# ---- index expressions ----

EXPRESSIONS = [
    (1024 * r0 + r1 - 3, "1024 * r0 + r1 - 3"),
    (-r0, "-r0"),
    (-2 * r0 + 1, "-2 * r0 + 1"),
    (r0 * (r1 + 1), "r0 * (r1 + 1)"),
    (r0 - (size - 1), "r0 - s0 + 1"),
    (r0**3, "r0 * r0 * r0"),
    (r0 * size / 4, "r0 * s0 / 4"),
    (FloorDiv(r0, 7) * 3 + Mod(r1, 5), "3 * (r0 / 7) + r1 % 5"),
    (FloorDiv(r0 - 3, 2), "floor_div(r0 - 3, 2)"),
    (FloorDiv(unknown, 2), "floor_div(u0, 2)"),
    (PythonMod(r0 - 3, 4), "floor_mod(r0 - 3, 4)"),
    (Integer(-7), "-7"),
]


@pytest.mark.parametrize(("expr", "text"), EXPRESSIONS, ids=str)
def test_expressions(expr, text):
    assert ExprPrinter()(expr) == text


def floor_div(a: int, b: int) -> int:
    return a // b


@pytest.mark.parametrize("expr", [e for e, _ in EXPRESSIONS], ids=str)
def test_expressions_mean_what_they_say(expr):
    """The text, read with C's truncating division, gives the value of the expression."""
    text = re.sub(r"(?<!/)/(?!/)", "//", ExprPrinter()(expr))  # every plain quotient has operands that are not negative
    names = {"floor_div": floor_div, "floor_mod": lambda a, b: a % b}
    for values in ((0, 0, 4, -5), (9, 5, 8, 7), (23, 11, 12, -8)):
        env = dict(zip((r0, r1, size, unknown), values))
        want = expr.subs(env)
        assert eval(text, names, {s.name: v for s, v in env.items()}) == want


def test_atoms_are_wrapped_only_where_needed():
    assert ExprPrinter().atom(r0) == "r0"
    assert ExprPrinter().atom(r0 + 1) == "(r0 + 1)"


def test_unknown_functions_are_named():
    with pytest.raises(UnsupportedOp, match="sin"):
        ExprPrinter()(sympy.sin(r0))


def test_writer_indents():
    write = Writer()
    with write.block("a {", "}"):
        write("b")
        write()
    assert write.text() == "a {\n    b\n\n}\n"


# ---- values ----


def printer(body, **options) -> CppPrinter:
    stored = {i.buffer: i for i in body if isinstance(i, Store)}
    names = dict.fromkeys(i.buffer for i in body if isinstance(i, Load | Store))
    dtypes = options.pop("dtypes", {})
    buffers = tuple(Buffer(n, dtypes.get(n, F32), n in stored) for n in names)
    rows, cols = options.pop("rows", (Axis(r0, Integer(10)),)), options.pop("cols", ())
    return CppPrinter(schedule(Kernel("k", rows, cols, buffers, (), (), tuple(body)), TARGET), 2)


LITERALS = [
    (1.0, F32, "1.0f"),
    (0.1, F32, "0.1f"),
    (0.1, torch.float64, "0.1"),
    (-0.0, F32, "(-0.0f)"),
    (1e-30, F32, "1e-30f"),
    (math.inf, F32, "((float)INFINITY)"),
    (-math.inf, torch.float64, "(-(double)INFINITY)"),
    (math.nan, F32, "(float)NAN"),
    (True, BOOL, "true"),
    (-5, I32, "(-5)"),
    (-(2**63), I64, "(int64_t)(-9223372036854775807 - 1)"),
    (-(2**31), I32, "(int32_t)(-2147483647 - 1)"),
    (200, torch.uint8, "(uint8_t)200"),
]


@pytest.mark.parametrize(("value", "dtype", "text"), LITERALS, ids=str)
def test_literals(value, dtype, text):
    assert printer([Load("x", r0, F32), Store("y", r0, 0)]).literal(value, dtype) == text


CASTS = [
    (F32, BOOL, "(v != 0)"),
    (F32, torch.int8, "(int8_t)(int32_t)v"),
    (F32, torch.uint8, "(uint8_t)(int64_t)v"),
    (I64, F32, "(float)v"),
    (F32, F32, "v"),
]


@pytest.mark.parametrize(("have", "want", "text"), CASTS, ids=str)
def test_casts(have, want, text):
    assert printer([Load("x", r0, F32), Store("y", r0, 0)]).cast("v", have, want) == text


def test_integer_arithmetic_wraps_and_indices_widen():
    body = [
        Load("i", r0, I32),
        Compute("add", (0, 0), I32),
        Load("x", value_symbol(1) * 3, F32),
        Store("y", r0, 2),
    ]
    text = printer(body, dtypes={"i": I32}).text()
    assert "const int32_t v1 = (int32_t)((uint32_t)v0 + (uint32_t)v0);" in text
    assert "x[3 * (int64_t)v1]" in text


def test_complex_values_are_unsupported():
    with pytest.raises(UnsupportedOp, match="complex64"):
        CppPrinter.memory_type(torch.complex64)


# ---- kernels ----


def test_a_pointwise_kernel():
    body = [Load("x", r0, F32), Compute("exp", (0,), F32), Store("y", r0, 1)]
    assert printer(body, dtypes={"y": torch.bfloat16}).text() == (
        "void kernel_k(const float* __restrict x, uint16_t* __restrict y, int* status)\n"
        "{\n"
        "    {\n"
        "        #pragma omp simd\n"
        "        for (int64_t r0 = 0; r0 < 10; ++r0) {\n"
        "            const float v0 = x[r0];\n"
        "            const float v1 = m::exp(v0);\n"
        "            y[r0] = store_bfloat16(v1);\n"
        "        }\n"
        "    }\n"
        "}\n"
    )


def test_a_row_reduction():
    body = [Load("x", r0 * 1000 + c0, F32), Reduce("sum", 0, F32), Store("y", r0, 1)]
    text = printer(body, rows=(Axis(r0, Integer(500)),), cols=(Axis(c0, Integer(1000)),)).text()
    assert text == (
        "void kernel_k(const float* __restrict x, float* __restrict y, int* status)\n"
        "{\n"
        "    #pragma omp parallel\n"
        "    {\n"
        "        #pragma omp for schedule(static) nowait\n"
        "        for (int64_t r0 = 0; r0 < 500; ++r0) {\n"
        "            alignas(64) float lanes1[64];\n"
        "            fill<64, float>(lanes1, 0);\n"
        "            each_lane<64>(0, 1000, [&](int64_t c0, int l) STEP {\n"
        "                const float v0 = x[c0 + 1000 * r0];\n"
        "                lanes1[l] += v0;\n"
        "            });\n"
        "            const float acc1 = fold_lanes<64>(lanes1, [](float& a, float b) { a += b; });\n"
        "            const float v1 = (float)acc1;\n"
        "            y[r0] = v1;\n"
        "        }\n"
        "    }\n"
        "}\n"
    )


def test_masked_loads_touch_nothing():
    body = [Load("m", r0, BOOL), Load("x", r0, F32, mask=0, other=1.0), Store("y", r0, 1)]
    assert "const float v1 = v0 ? x[r0] : 1.0f;" in printer(body, dtypes={"m": BOOL}).text()


def test_index_checks_guard_what_they_index():
    body = [
        Load("i", r0, I64),
        Compute("check_index", (0,), I64, (Integer(7), True, "out of range")),
        Load("x", value_symbol(1), F32),
        Store("y", r0, 2),
    ]
    made = printer(body, dtypes={"i": I64})
    text = made.text()
    assert made.messages == ["out of range"]
    assert "const int64_t v1 = v0 < 0 ? (int64_t)(v0 + 7) : v0;" in text
    assert "const float v2 = ok1 ? x[v1] : 0.0f;" in text
    assert "if (bad) *status = 2 + __builtin_ctz(bad);" in text


# ---- modules ----


def test_the_same_kernels_give_the_same_text():
    b = Builder()
    b.emit(Store("y", r0, b.emit(Load("x", r0, F32))))
    kernel = Kernel("k", (Axis(r0, size),), (), (Buffer("x", F32), Buffer("y", F32, True)), (size,), (), tuple(b.body))
    segment = Segment("run", ("x", "y"), (size,), (), (), (Call("k", ("x", "y")),))
    first, second = (module_source([kernel], [segment], TARGET) for _ in range(2))
    assert first == second
    assert first.parts == 1
    assert 'check_count("run", 3, count)' in first.text
    many = [kernel.renamed(f"k{i}") for i in range(9)]
    assert module_source(many, [], TARGET).parts == 3


def test_scratch_buffers_reuse_memory_when_their_lives_are_over():
    calls = tuple(Call("k", pair) for pair in (("x", "a"), ("a", "b"), ("b", "c"), ("c", "y")))
    scratch = (Scratch("a", Integer(100)), Scratch("b", 4 * size), Scratch("c", Integer(100)))
    places, total = Segment("s", ("x", "y"), (size,), (), scratch, calls).place_scratch()
    assert places["a"] == places["c"] == 0
    assert places["b"] == 128
    assert total.subs({size: 16}) == 192
