"""Printed Triton kernels, run under Triton's interpreter, against the interpreter of the kernel IR."""

from __future__ import annotations

import itertools
import math

import pytest
import sympy
import torch

from optpass.autotune.arch import target
from optpass.codegen.expr import axis_symbol
from optpass.codegen.ir import (
    OPS,
    Axis,
    Buffer,
    Compute,
    Const,
    Index,
    Kernel,
    Load,
    Store,
)
from optpass.codegen.printers.triton import emit
from optpass.codegen.tiles import Tile
from optpass.errors import UnsupportedOp
from optpass.testing.triton_check import check, run_interpreted

pytestmark = pytest.mark.triton

R0, R1, R2, C0, C1 = (axis_symbol(n) for n in ("r0", "r1", "r2", "c0", "c1"))
F32, F64, I32, I64, BOOL = torch.float32, torch.float64, torch.int32, torch.int64, torch.bool
FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.nan,
    math.inf,
    -math.inf,
    1e-40,
    -1e-6,
    3e-4,
    0.3,
    -0.7,
    0.5,
    1.5,
    -2.5,
    3.7,
    88.0,
    -100.5,
    1e6,
    -3e38,
]
INTS = [0, 1, -1, 2, -2, 3, -7, 8, 100, -128, 127]


def values(dtype: torch.dtype) -> torch.Tensor:
    if dtype == BOOL:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        return torch.tensor(FLOATS).to(dtype)
    if dtype == torch.uint8:
        return torch.tensor([0, 1, 2, 3, 7, 127, 128, 255], dtype=dtype)
    info = torch.iinfo(dtype)
    return torch.tensor([*INTS, info.max, info.min], dtype=dtype)


def widened(dtype: torch.dtype) -> torch.dtype:
    return F32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def pairwise(op: str, dtype: torch.dtype, out: torch.dtype, arity: int, attr: object = None) -> Kernel:
    """``out[i, j, …] = op(a[i], b[j], …)``."""
    n = len(values(dtype))
    symbols = (R0, R1, R2)[:arity]
    loads = [Load(f"in{i}", s, widened(dtype)) for i, s in enumerate(symbols)]
    flat = 0
    for s in symbols:
        flat = flat * n + s
    body = (*loads, Compute(op, tuple(range(arity)), widened(out), attr), Store("out", flat, arity))
    return Kernel(
        f"k_{op}",
        tuple(Axis(s, n) for s in symbols),
        (),
        (*(Buffer(f"in{i}", dtype) for i in range(arity)), Buffer("out", out, True)),
        (),
        (),
        body,
    )


def check_pairwise(kernel: Kernel, inputs: list[torch.Tensor], **tolerance: float) -> None:
    buffers = {f"in{i}": t for i, t in enumerate(inputs)}
    count = math.prod(a.size for a in kernel.rows)
    check(kernel, {**buffers, "out": torch.empty(count, dtype=kernel.buffers[-1].dtype)}, **tolerance)


FLOAT_OPS = [
    op
    for op in OPS
    if op
    not in {
        "idiv",
        "imod",
        "tdiv",
        "and",
        "or",
        "xor",
        "not",
        "shl",
        "shr",
        "where",
        "cast",
        "round",
        "check_index",
        "bitcast",
        "rand",
    }
]
PREDICATES = {"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "signbit"}


@pytest.mark.parametrize("dtype", [F32, F64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", FLOAT_OPS)
def test_float_op(op: str, dtype: torch.dtype):
    out = BOOL if op in PREDICATES else dtype
    # PyTorch's own results depend on an element's place: vector code and its scalar remainder are roundings apart.
    exact = PREDICATES | {
        "neg",
        "abs",
        "add",
        "sub",
        "mul",
        "div",
        "floor",
        "ceil",
        "trunc",
        "rint",
        "fmod",
        "copysign",
        "maximum",
        "minimum",
    }
    tolerance = {} if op in exact else {"rtol": 4 * torch.finfo(dtype).eps}
    check_pairwise(pairwise(op, dtype, out, OPS[op]), [values(dtype)] * OPS[op], **tolerance)


INT_OPS = [
    "neg",
    "abs",
    "add",
    "sub",
    "mul",
    "and",
    "or",
    "xor",
    "not",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "maximum",
    "minimum",
    "signbit",
]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, I32, I64, torch.uint8], ids=str)
@pytest.mark.parametrize("op", INT_OPS)
def test_int_op(op: str, dtype: torch.dtype):
    check_pairwise(pairwise(op, dtype, BOOL if op in PREDICATES else dtype, OPS[op]), [values(dtype)] * OPS[op])


@pytest.mark.parametrize("dtype", [torch.int8, I32, I64, torch.uint8], ids=str)
@pytest.mark.parametrize("op", ["idiv", "imod", "tdiv", "fmod"])
def test_int_division(op: str, dtype: torch.dtype):
    divisors = values(dtype)
    # The divisor 0 never occurs, and min / -1 overflows.
    divisors = torch.where((divisors == 0) | (divisors == -1), torch.tensor(5, dtype=dtype), divisors)
    check_pairwise(pairwise(op, dtype, dtype, 2), [values(dtype), divisors])


@pytest.mark.parametrize("dtype", [I32, I64], ids=str)
@pytest.mark.parametrize("op", ["shl", "shr", "pow"])
def test_shift_and_power(op: str, dtype: torch.dtype):
    amounts = torch.arange(len(values(dtype)), dtype=dtype)
    check_pairwise(pairwise(op, dtype, dtype, 2), [values(dtype), amounts])


def test_power_with_negative_exponent():
    base = torch.tensor([1, -1, 1, -1, 3, -3, 2, 1, -1, 7, 5, 5, 5])
    kernel = pairwise("pow", I64, I64, 2)
    out = torch.empty(len(base) ** 2, dtype=I64)
    run_interpreted(kernel, {"in0": base, "in1": torch.full((13,), -3), "out": out})
    assert out.view(13, 13)[:, 0].tolist() == [1, -1, 1, -1, 0, 0, 0, 1, -1, 0, 0, 0, 0]


@pytest.mark.parametrize("op", ["and", "or", "xor", "not", "eq", "ne", "lt", "ge", "maximum", "minimum", "add", "mul"])
def test_bool_op(op: str):
    check_pairwise(pairwise(op, BOOL, BOOL, OPS[op]), [values(BOOL)] * OPS[op])


@pytest.mark.parametrize("dtype", [F32, F64, I64], ids=str)
def test_truth_of_a_scalar_beside_a_block(dtype: torch.dtype):
    body = (
        Load("a", R0 * 8 + R1, F64),
        Compute("cast", (0,), BOOL),
        Load("s", sympy.S.Zero, dtype),
        Compute("cast", (2,), BOOL),
        Compute("and", (1, 3), BOOL),
        Store("out", R0 * 8 + R1, 4),
    )
    buffers = (Buffer("a", F64), Buffer("s", dtype), Buffer("out", BOOL, True))
    kernel = Kernel("both", (Axis(R0, 4), Axis(R1, 8)), (), buffers, (), (), body)
    a, s = torch.arange(32, dtype=F64) % 3, torch.tensor([2], dtype=dtype)
    check(kernel, {"a": a, "s": s, "out": torch.empty(32, dtype=BOOL)})


@pytest.mark.parametrize("dtype", [F32, F64, torch.int8, I64, BOOL], ids=str)
def test_where(dtype: torch.dtype):
    n = len(values(dtype))
    body = (
        Load("c", R0, BOOL),
        Load("a", R1, dtype),
        Const(1, dtype),
        Compute("where", (0, 1, 2), dtype),
        Compute("where", (0, 2, 2), dtype),
        Compute("where", (0, 3, 4), dtype),
        Store("out", R0 * n + R1, 5),
    )
    buffers = (Buffer("c", BOOL), Buffer("a", dtype), Buffer("out", dtype, True))
    kernel = Kernel("choose", (Axis(R0, 2), Axis(R1, n)), (), buffers, (), (), body)
    check(kernel, {"c": values(BOOL), "a": values(dtype), "out": torch.empty(2, n, dtype=dtype)})


CASTS = [F32, F64, torch.int8, torch.int16, I32, I64, torch.uint8, BOOL]


@pytest.mark.parametrize("before,after", list(itertools.permutations(CASTS, 2)), ids=str)
def test_cast(before: torch.dtype, after: torch.dtype):
    inputs = values(before)
    if before.is_floating_point and not after.is_floating_point and after != BOOL:
        # What is out of the integer's range has no meaning.
        inputs = torch.where((inputs >= 0) & (inputs < 100), inputs, torch.tensor(2.75, dtype=before))
    n = len(inputs)
    body = (Load("a", R0, before), Compute("cast", (0,), after), Store("out", R0, 1))
    kernel = Kernel("cast", (Axis(R0, n),), (), (Buffer("a", before), Buffer("out", after, True)), (), (), body)
    check(kernel, {"a": inputs, "out": torch.empty(n, dtype=after)})


NARROW = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_round_load_and_store_of_narrow_floats(dtype: torch.dtype):
    info = torch.finfo(dtype)
    x = torch.cat([torch.tensor(FLOATS), torch.randn(200), torch.randn(200) * info.max, torch.randn(99) * info.tiny])
    x = torch.cat([x, torch.tensor([464.0, 465.0, -464.0, -470.0, 61440.0, 61439.0, -61440.0, 65520.0, 65519.0])])
    n = len(x)
    body = (
        Load("a", R0, F32),
        Compute("round", (0,), F32, dtype),
        Load("b", R0, F32),
        Store("rounded", R0, 1),
        Store("stored", R0, 0),
        Store("widened", R0, 2),
    )
    buffers = (
        Buffer("a", F32),
        Buffer("b", dtype),
        Buffer("rounded", F32, True),
        Buffer("stored", dtype, True),
        Buffer("widened", F32, True),
    )
    kernel = Kernel("narrow", (Axis(R0, n),), (), buffers, (), (), body)
    outputs = {"rounded": torch.empty(n), "stored": torch.empty(n).to(dtype), "widened": torch.empty(n)}
    check(kernel, {"a": x, "b": x.to(dtype), **outputs})


def test_bitcast():
    body = (
        Load("a", R0, F32),
        Compute("bitcast", (0,), I32),
        Compute("bitcast", (1,), F32),
        Store("i", R0, 1),
        Store("f", R0, 2),
    )
    buffers = (Buffer("a", F32), Buffer("i", I32, True), Buffer("f", F32, True))
    x = values(F32)
    kernel = Kernel("bits", (Axis(R0, len(x)),), (), buffers, (), (), body)
    check(kernel, {"a": x, "i": torch.empty(len(x), dtype=I32), "f": torch.empty(len(x))})


def test_rand_is_bit_identical():
    n = 1000
    body = (Load("seed", sympy.S.Zero, I64), Index(R0 + 7 * 2**33), Compute("rand", (0, 1), F32), Store("out", R0, 2))
    kernel = Kernel("dice", (Axis(R0, n),), (), (Buffer("seed", I64), Buffer("out", F32, True)), (), (), body)
    check(kernel, {"seed": torch.tensor([-(2**62) + 12345]), "out": torch.empty(n)})


def test_constants_of_every_dtype():
    cases = [
        (F32, 0.1),
        (F32, math.inf),
        (F32, math.nan),
        (F32, -0.0),
        (F64, 0.1),
        (F64, -math.inf),
        (I64, 2**40),
        (torch.int8, -3),
        (torch.uint8, 200),
        (BOOL, True),
    ]
    body, buffers, tensors = [], [], {}
    for i, (dtype, value) in enumerate(cases):
        body += [Const(value, dtype), Store(f"o{i}", R0, 2 * i)]
        buffers.append(Buffer(f"o{i}", dtype, True))
        tensors[f"o{i}"] = torch.zeros(3, dtype=dtype)
    check(Kernel("constants", (Axis(R0, 3),), (), tuple(buffers), (), (), tuple(body)), tensors)


def test_literals_take_the_dtype_of_the_other_operand():
    for dtype, value in ((F32, 0.1), (F64, 0.1), (I64, 2**40), (I32, 3), (torch.int8, 3)):
        body = (
            Load("a", R0, dtype),
            Const(value, dtype),
            Compute("add", (1, 0), dtype),
            Compute("mul", (2, 1), dtype),
            Store("out", R0, 3),
        )
        kernel = Kernel("literal", (Axis(R0, 9),), (), (Buffer("a", dtype), Buffer("out", dtype, True)), (), (), body)
        check(kernel, {"a": torch.arange(9).to(dtype), "out": torch.empty(9, dtype=dtype)})


# -- the text --


def test_text_of_a_kernel():
    body = (Load("a", R0, F32), Const(0.5, F32), Compute("mul", (0, 1), F32), Store("out", R0, 2))
    kernel = Kernel(
        "half", (Axis(R0, 1000),), (), (Buffer("a", torch.bfloat16), Buffer("out", F32, True)), (), (), body
    )
    source = emit(kernel, Tile(x=kernel.rows, x_block=128), target("sm_90"))
    assert source.text == (
        "import triton\n"
        "import triton.language as tl\n\n\n"
        "@triton.jit\n"
        "def half(a_ptr, out_ptr, XBLOCK: tl.constexpr):\n"
        "    r0 = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)\n"
        "    x_in = r0 < 1000\n"
        "    v0 = tl.load(a_ptr + r0, x_in).to(tl.float32)\n"
        "    v2 = v0 * 0.5\n"
        "    tl.store(out_ptr + r0, v2, x_in)\n"
    )
    assert source.programs == 8
    assert source.signature == (("a_ptr", "*bf16"), ("out_ptr", "*fp32"), ("XBLOCK", "constexpr"))


def test_dtype_that_the_target_lacks():
    kernel = pairwise("neg", torch.float8_e4m3fn, F32, 1)
    with pytest.raises(UnsupportedOp, match="sm_80"):
        emit(kernel, Tile(), target("sm_80"))
