"""Printed Triton kernels, run under Triton's interpreter, against the interpreter of the kernel IR."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from optpass.autotune.arch import target
from optpass.codegen import interpret
from optpass.codegen.expr import Symbol, axis_symbol, floor_div, mod, value_symbol
from optpass.codegen.ir import (
    OPS,
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
    Scalar,
    Store,
)
from optpass.codegen.printers.triton import emit
from optpass.codegen.tiles import Tile, arrange, tile
from optpass.errors import UnsupportedOp
from optpass.testing.triton_check import run_interpreted

pytestmark = pytest.mark.triton

R0, R1, R2, C0, C1 = (axis_symbol(n) for n in ("r0", "r1", "r2", "c0", "c1"))
F32, F64, I32, I64, BOOL = torch.float32, torch.float64, torch.int32, torch.int64, torch.bool
FLOATS = [0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e-40, -1e-6, 3e-4, 0.3, -0.7, 0.5, 1.5, -2.5, 3.7, 88.0, -100.5, 1e6, -3e38]  # fmt: skip
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


def check(kernel: Kernel, tensors: dict, sizes=None, scalars=None, *, choice=None, rtol=0.0, atol=0.0) -> None:
    """The same bytes in every buffer, but for floats within the tolerance."""
    expected = {n: copy_of(t) for n, t in tensors.items()}
    interpret.run(kernel, expected, sizes, scalars)
    actual = {n: copy_of(t) for n, t in tensors.items()}
    run_interpreted(kernel, actual, sizes, scalars, choice=choice)
    for buffer in kernel.buffers:
        a, e = actual[buffer.name], expected[buffer.name]
        if a.is_floating_point() and a.element_size() == 1:
            a, e = a.float(), e.float()
        torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{m}\n{kernel}")
        if a.is_floating_point() and not rtol:
            numbers = ~e.isnan()
            assert torch.equal(a.signbit()[numbers], e.signbit()[numbers]), f"sign of zero\n{kernel}"


def copy_of(t: torch.Tensor) -> torch.Tensor:
    storage = t.untyped_storage().clone()
    return torch.empty(0, dtype=t.dtype).set_(storage, t.storage_offset(), t.shape, t.stride())


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
    op for op in OPS
    if op not in {"idiv", "imod", "tdiv", "and", "or", "xor", "not", "shl", "shr", "where", "cast", "round",
                  "check_index", "bitcast", "rand"}
]  # fmt: skip
PREDICATES = {"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "signbit"}


@pytest.mark.parametrize("dtype", [F32, F64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", FLOAT_OPS)
def test_float_op(op: str, dtype: torch.dtype):
    out = BOOL if op in PREDICATES else dtype
    # PyTorch's own results depend on an element's place: vector code and its scalar remainder are roundings apart.
    exact = PREDICATES | {"neg", "abs", "add", "sub", "mul", "div", "floor", "ceil", "trunc", "rint", "fmod", "copysign",
                          "maximum", "minimum"}  # fmt: skip
    tolerance = {} if op in exact else {"rtol": 4 * torch.finfo(dtype).eps}
    check_pairwise(pairwise(op, dtype, out, OPS[op]), [values(dtype)] * OPS[op], **tolerance)


INT_OPS = "neg abs add sub mul and or xor not lt le gt ge eq ne maximum minimum signbit".split()


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


@pytest.mark.parametrize("dtype", [F32, F64, torch.int8, I64, BOOL], ids=str)
def test_where(dtype: torch.dtype):
    n = len(values(dtype))
    body = (
        Load("c", R0, BOOL), Load("a", R1, dtype), Const(1, dtype), Compute("where", (0, 1, 2), dtype),
        Compute("where", (0, 2, 2), dtype), Compute("where", (0, 3, 4), dtype), Store("out", R0 * n + R1, 5),
    )  # fmt: skip
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
        Load("a", R0, F32), Compute("round", (0,), F32, dtype), Load("b", R0, F32), Store("rounded", R0, 1),
        Store("stored", R0, 0), Store("widened", R0, 2),
    )  # fmt: skip
    buffers = (
        Buffer("a", F32), Buffer("b", dtype), Buffer("rounded", F32, True), Buffer("stored", dtype, True),
        Buffer("widened", F32, True),
    )  # fmt: skip
    kernel = Kernel("narrow", (Axis(R0, n),), (), buffers, (), (), body)
    outputs = {"rounded": torch.empty(n), "stored": torch.empty(n).to(dtype), "widened": torch.empty(n)}
    check(kernel, {"a": x, "b": x.to(dtype), **outputs})


def test_bitcast():
    body = (Load("a", R0, F32), Compute("bitcast", (0,), I32), Compute("bitcast", (1,), F32), Store("i", R0, 1), Store("f", R0, 2))
    buffers = (Buffer("a", F32), Buffer("i", I32, True), Buffer("f", F32, True))
    x = values(F32)
    kernel = Kernel("bits", (Axis(R0, len(x)),), (), buffers, (), (), body)
    check(kernel, {"a": x, "i": torch.empty(len(x), dtype=I32), "f": torch.empty(len(x))})


def test_rand_is_bit_identical():
    n = 1000
    body = (Load("seed", axis_symbol("r0") * 0, I64), Index(R0 + 7 * 2**33), Compute("rand", (0, 1), F32), Store("out", R0, 2))
    kernel = Kernel("dice", (Axis(R0, n),), (), (Buffer("seed", I64), Buffer("out", F32, True)), (), (), body)
    check(kernel, {"seed": torch.tensor([-(2**62) + 12345]), "out": torch.empty(n)})


def test_constants_of_every_dtype():
    cases = [(F32, 0.1), (F32, math.inf), (F32, math.nan), (F32, -0.0), (F64, 0.1), (F64, -math.inf), (I64, 2**40),
             (torch.int8, -3), (torch.uint8, 200), (BOOL, True)]  # fmt: skip
    body, buffers, tensors = [], [], {}
    for i, (dtype, value) in enumerate(cases):
        body += [Const(value, dtype), Store(f"o{i}", R0, 2 * i)]
        buffers.append(Buffer(f"o{i}", dtype, True))
        tensors[f"o{i}"] = torch.zeros(3, dtype=dtype)
    check(Kernel("constants", (Axis(R0, 3),), (), tuple(buffers), (), (), tuple(body)), tensors)


def test_literals_take_the_dtype_of_the_other_operand():
    for dtype, value in ((F32, 0.1), (F64, 0.1), (I64, 2**40), (I32, 3), (torch.int8, 3)):
        body = (Load("a", R0, dtype), Const(value, dtype), Compute("add", (1, 0), dtype), Compute("mul", (2, 1), dtype), Store("out", R0, 3))
        kernel = Kernel("literal", (Axis(R0, 9),), (), (Buffer("a", dtype), Buffer("out", dtype, True)), (), (), body)
        check(kernel, {"a": torch.arange(9).to(dtype), "out": torch.empty(9, dtype=dtype)})


# -- iteration spaces --


@pytest.mark.parametrize("n", [0, 1, 2, 127, 1024, 1025, 5000])
def test_one_dimension(n: int):
    body = (Load("a", R0, F32), Load("b", 2 * R0 + 1, F32), Compute("add", (0, 1), F32), Store("out", R0, 2))
    buffers = (Buffer("a", F32), Buffer("b", F32), Buffer("out", F32, True))
    kernel = Kernel("add", (Axis(R0, n),), (), buffers, (), (), body)
    check(kernel, {"a": torch.randn(n), "b": torch.randn(2 * n), "out": torch.empty(n)})


def test_no_dimension():
    body = (Load("a", R0 * 0, F32), Const(2.0, F32), Compute("mul", (0, 1), F32), Store("out", R0 * 0, 2))
    kernel = Kernel("double", (), (), (Buffer("a", F32), Buffer("out", F32, True)), (), (), body)
    check(kernel, {"a": torch.randn(1), "out": torch.empty(1)})


@pytest.mark.parametrize("shape", [(7, 5), (33, 70), (100, 3), (1, 64), (64, 1), (65, 1030)])
def test_broadcast_and_transpose(shape: tuple[int, int]):
    """``out[i, j] = a[j, i] + row[j] + column[i] + single``."""
    m, n = shape
    body = (
        Load("a", R1 * m + R0, F32), Load("row", R1, F32), Load("column", R0, F32), Load("single", R0 * 0, F32),
        Compute("add", (0, 1), F32), Compute("add", (4, 2), F32), Compute("add", (5, 3), F32), Store("out", R0 * n + R1, 6),
    )  # fmt: skip
    buffers = (*(Buffer(b, F32) for b in ("a", "row", "column", "single")), Buffer("out", F32, True))
    kernel = Kernel("spread", (Axis(R0, m), Axis(R1, n)), (), buffers, (), (), body)
    tensors = {"a": torch.randn(n, m), "row": torch.randn(n), "column": torch.randn(m), "single": torch.randn(1)}
    check(kernel, {**tensors, "out": torch.empty(m, n)})


def test_batched_transpose_of_padded_rows():
    b, m, n = 3, 17, 41
    body = (Load("a", R0 * 2000 + R2 * 48 + R1, torch.int16), Store("out", (R0 * m + R1) * n + R2, 0))
    kernel = Kernel("turn", (Axis(R0, b), Axis(R1, m), Axis(R2, n)), (), (Buffer("a", torch.int16), Buffer("out", torch.int16, True)), (), (), body)  # fmt: skip
    check(kernel, {"a": torch.randint(-99, 99, (6000,), dtype=torch.int16), "out": torch.zeros(b * m * n, dtype=torch.int16)})


def test_channels_last_output_and_flip():
    """Rows in logical order n, c, h; memory of the output in order n, h, c; the input is read backwards."""
    n, c, h = 2, 5, 30
    body = (Load("a", (R0 * c + R1) * h + (h - 1 - R2), F32), Store("out", (R0 * h + R2) * c + R1, 0))
    kernel = Kernel("relay", (Axis(R0, n), Axis(R1, c), Axis(R2, h)), (), (Buffer("a", F32), Buffer("out", F32, True)), (), (), body)  # fmt: skip
    check(kernel, {"a": torch.randn(n * c * h), "out": torch.empty(n * c * h)})


def test_index_arithmetic():
    n = 100
    place = mod(R0 * 7 + 3, axis_symbol("r0") * 0 + 50) + floor_div(R0, 3)
    below = floor_div(R0 - 37, 4) + 10
    body = (Load("a", place, F32), Index(below), Store("out", R0, 0), Store("index", R0, 1))
    buffers = (Buffer("a", F32), Buffer("out", F32, True), Buffer("index", I64, True))
    kernel = Kernel("indices", (Axis(R0, n),), (), buffers, (), (), body)
    check(kernel, {"a": torch.randn(n), "out": torch.empty(n), "index": torch.empty(n, dtype=I64)})


def test_masked_load():
    """Memory is not touched where the mask is false, also where the index varies along fewer axes than the mask."""
    body = (
        Index(R0), Const(4, I64), Compute("lt", (0, 1), BOOL), Load("a", R0, F32, 2, -math.inf),
        Load("half", R1, F32, 2, 1e9), Load("flag", R0, BOOL, 2, True), Store("x", R0 * 3 + R1, 3),
        Store("y", R0 * 3 + R1, 4), Store("z", R0 * 3 + R1, 5),
    )  # fmt: skip
    buffers = (
        Buffer("a", F32), Buffer("half", torch.float16), Buffer("flag", BOOL), Buffer("x", F32, True),
        Buffer("y", F32, True), Buffer("z", BOOL, True),
    )  # fmt: skip
    kernel = Kernel("pad", (Axis(R0, 9), Axis(R1, 3)), (), buffers, (), (), body)
    tensors = {"a": torch.randn(4), "half": torch.randn(3).half(), "flag": torch.tensor([False, True, False, False])}
    check(kernel, {**tensors, "x": torch.empty(27), "y": torch.empty(27), "z": torch.empty(27, dtype=BOOL)})


def gather(rows: int, wrap: bool) -> Kernel:
    body = (Load("index", R0, I64), Compute("check_index", (0,), I64, (rows, wrap, "index out of range")),
            Load("table", value_symbol(1) * 4 + R1, F32), Store("out", R0 * 4 + R1, 2))  # fmt: skip
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
        Load("a", R0 * n + R1, F32), Scalar("scale", F64), Compute("cast", (1,), F32), Compute("mul", (0, 2), F32),
        Index(R0 * n + m), Compute("cast", (4,), F32), Compute("add", (3, 5), F32), Scalar("shift", I64),
        Compute("cast", (7,), F32), Compute("add", (6, 8), F32), Scalar("on", BOOL), Const(0.0, F32),
        Compute("where", (10, 9, 11), F32), Store("out", R1 * m + R0, 12),
    )  # fmt: skip
    kernel = Kernel(
        "dynamic", (Axis(R0, m), Axis(R1, n)), (), (Buffer("a", F32), Buffer("out", F32, True)), (m, n),
        (Scalar("scale", F64), Scalar("shift", I64), Scalar("on", BOOL)), body,
    )  # fmt: skip
    for sizes in ((3, 5), (70, 11), (1, 1), (0, 4)):
        count = sizes[0] * sizes[1]
        tensors = {"a": torch.randn(count), "out": torch.empty(count)}
        check(kernel, tensors, dict(zip((m, n), sizes)), {"scale": 0.5, "shift": -3, "on": True})


# -- reductions --


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
    (op, dtype, I64 if op.startswith("arg") or not dtype.is_floating_point and op in ("sum", "prod") else dtype)
    for op in REDUCE_OPS if op not in ("any", "all")
    for dtype in (F32, F64, torch.bfloat16, I32, I64, torch.int8, torch.uint8)
    if op != "welford" or dtype.is_floating_point
] + [("any", BOOL, BOOL), ("all", BOOL, BOOL), ("sum", BOOL, I64), ("max", BOOL, BOOL), ("min", BOOL, BOOL)]  # fmt: skip
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
    check(row_reduction(op, rows, cols, dtype, out), {"a": sample(op, (rows, cols), dtype), "out": torch.empty(rows, dtype=out)})


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows,cols", [(2, 100), (700, 30), (3, 1), (2, 5000), (1, 40000), (33, 257)])
def test_softmax(rows: int, cols: int, dtype: torch.dtype):
    place = R0 * cols + C0
    body = (
        Load("a", place, F32), Reduce("max", 0, F32), Compute("sub", (0, 1), F32), Compute("exp", (2,), F32),
        Reduce("sum", 3, F32), Compute("div", (3, 4), F32), Store("out", place, 5), Compute("log", (4,), F32),
        Compute("add", (7, 1), F32), Store("lse", R0, 8),
    )  # fmt: skip
    buffers = (Buffer("a", dtype), Buffer("out", dtype, True), Buffer("lse", F32, True))
    kernel = Kernel("softmax", (Axis(R0, rows),), (Axis(C0, cols),), buffers, (), (), body)
    tensors = {"a": torch.randn(rows, cols).to(dtype), "out": torch.empty(rows, cols, dtype=dtype), "lse": torch.empty(rows)}
    check(kernel, tensors, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def layer_norm(rows, cols, dtype: torch.dtype, sizes: tuple[Symbol, ...] = ()) -> Kernel:
    """Every level: columns only (weight), rows only (statistics), both; the input is overwritten."""
    place = R0 * cols + C0
    body = (
        Load("a", place, F32), Load("w", C0, F32), Reduce("welford", 0, F32), Part(2, 0, F32), Part(2, 1, F32),
        Index(sum((Symbol("zero", integer=True) * 0,), cols)), Compute("cast", (5,), F32), Compute("div", (4, 6), F32),
        Const(1e-5, F32), Compute("add", (7, 8), F32), Compute("rsqrt", (9,), F32), Compute("sub", (0, 3), F32),
        Compute("mul", (11, 10), F32), Compute("mul", (12, 1), F32), Store("a", place, 13), Reduce("max", 13, F32),
        Store("top", R0, 15), Store("mean", R0, 3), Compute("sub", (0, 15), F32), Store("rest", place, 18),
    )  # fmt: skip
    buffers = (Buffer("a", dtype, True), Buffer("w", F32), Buffer("top", F32, True), Buffer("mean", F32, True), Buffer("rest", F32, True))
    return Kernel("norm", (Axis(R0, rows),), (Axis(C0, cols),), buffers, sizes, (), body)


@pytest.mark.parametrize("rows,cols", [(5, 64), (3, 77), (1, 4100)])
@pytest.mark.parametrize("looped", [False, True])
def test_layer_norm_in_place(rows: int, cols: int, looped: bool):
    import sympy

    kernel = layer_norm(rows, sympy.Integer(cols), F32)
    tensors = {"a": torch.randn(rows, cols), "w": torch.randn(cols), "top": torch.empty(rows), "mean": torch.empty(rows), "rest": torch.empty(rows, cols)}
    choice = replace(tile(arrange(kernel), target("sm_90")))
    if looped:
        choice = replace(choice, looped=True, x_block=32)
    check(kernel, tensors, choice=choice, rtol=1e-5, atol=1e-5)


def test_symbolic_rows_and_columns():
    m, n = Symbol("s0", integer=True, positive=True), Symbol("s1", integer=True, positive=True)
    kernel = layer_norm(m, n, F32, (m, n))
    for rows, cols in ((3, 5), (2, 3000), (0, 3)):
        tensors = {"a": torch.randn(rows, cols), "w": torch.randn(cols), "top": torch.empty(rows), "mean": torch.empty(rows), "rest": torch.empty(rows, cols)}
        check(kernel, tensors, {m: rows, n: cols}, rtol=1e-5, atol=1e-5)


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
        Load("a", (C0 * c + R0) * h + C1, F32), Reduce("sum", 0, F32), Reduce("argmax", 0, I64), Store("sum", R0, 1),
        Store("at", R0, 2), Compute("sub", (0, 1), F32), Store("out", (C0 * c + R0) * h + C1, 5),
    )  # fmt: skip
    buffers = (Buffer("a", F32), Buffer("sum", F32, True), Buffer("at", I64, True), Buffer("out", F32, True))
    kernel = Kernel("channels", (Axis(R0, c),), (Axis(C0, n), Axis(C1, h)), buffers, (), (), body)
    tensors = {"a": torch.randn(n, c, h), "sum": torch.empty(c), "at": torch.empty(c, dtype=I64), "out": torch.empty(n, c, h)}
    check(kernel, tensors, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("n", [1, 100, 9000])
def test_reduction_to_a_scalar(n: int):
    body = (Load("a", C0, F32), Reduce("sum", 0, F32), Reduce("max", 0, F32), Const(1.0, F32), Reduce("sum", 3, F32),
            Store("out", R0 * 0, 1), Store("out", R0 * 0 + 1, 2), Store("out", R0 * 0 + 2, 4))  # fmt: skip
    kernel = Kernel("all", (), (Axis(C0, n),), (Buffer("a", F32), Buffer("out", F32, True)), (), (), body)
    check(kernel, {"a": torch.randn(n), "out": torch.empty(3)}, rtol=1e-4, atol=1e-4)


def test_reduction_of_what_does_not_vary_along_columns():
    body = (Load("a", R0, F32), Reduce("sum", 0, F32), Load("b", C0, F32), Reduce("argmax", 2, I64),
            Store("out", R0, 1), Store("at", R0, 3))  # fmt: skip
    buffers = (Buffer("a", F32), Buffer("b", F32), Buffer("out", F32, True), Buffer("at", I64, True))
    kernel = Kernel("flat", (Axis(R0, 600),), (Axis(C0, 11),), buffers, (), (), body)
    tensors = {"a": torch.randn(600), "b": torch.randn(11), "out": torch.empty(600), "at": torch.empty(600, dtype=I64)}
    check(kernel, tensors, rtol=1e-5)


# -- the text --


def test_text_of_a_kernel():
    body = (Load("a", R0, F32), Const(0.5, F32), Compute("mul", (0, 1), F32), Store("out", R0, 2))
    kernel = Kernel("half", (Axis(R0, 1000),), (), (Buffer("a", torch.bfloat16), Buffer("out", F32, True)), (), (), body)
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
    kernel = row_reduction("sum", 3, 4, torch.float8_e4m3fn, F32)
    with pytest.raises(UnsupportedOp, match="sm_80"):
        emit(kernel, Tile(), target("sm_80"))
