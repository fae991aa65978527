"""C++ kernels, built and run, against the interpreter and against PyTorch."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
from pathlib import Path

import pytest
import sympy
import torch

from optpass.backends import cpu
from optpass.backends.cache import Store as ArtefactStore
from optpass.codegen import interpret
from optpass.codegen.expr import Integer, Symbol, axis_symbol, value_symbol
from optpass.codegen.ir import (
    NARROW_FLOATS,
    OPS,
    Axis,
    Buffer,
    Builder,
    Compute,
    Const,
    Index,
    Kernel,
    Load,
    Part,
    Reduce,
    Scalar,
    Store,
    short,
)
from optpass.codegen.loops import schedule
from optpass.codegen.printers.cpp import CppPrinter
from optpass.codegen.segment import Call, Scratch, Segment
from optpass.errors import CompileError, CompilerMissing

pytestmark = pytest.mark.cpu

F32, F64, I64, BOOL = torch.float32, torch.float64, torch.int64, torch.bool
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
r0, r1, r2, c0, c1 = map(axis_symbol, ("r0", "r1", "r2", "c0", "c1"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtefactStore(tmp_path_factory.mktemp("store"))


def wrap(kernel: Kernel) -> Segment:
    """A segment that calls one kernel."""
    buffers, scalars = tuple(b.name for b in kernel.buffers), tuple(s.name for s in kernel.scalars)
    call = Call(kernel.name, buffers, scalars)
    return Segment(f"run_{kernel.name}", buffers, kernel.sizes, kernel.scalars, (), (call,))


def build(store, *kernels: Kernel) -> cpu.BuiltModule:
    return cpu.build_module(kernels, [wrap(k) for k in kernels], store)


def run(module: cpu.BuiltModule, kernel: Kernel, tensors: dict, sizes: dict | None = None, scalars: dict | None = None):
    values = [*tensors.values(), *(sizes or {}).values(), *(scalars or {}).values()]
    module.entry(f"run_{kernel.name}")(*values)


def both(module, kernel, tensors, sizes=None, scalars=None):
    """Outputs of the built kernel and of the interpreter, pair by pair."""
    ours, theirs = ({n: t.clone() for n, t in tensors.items()} for _ in range(2))
    run(module, kernel, ours, sizes, scalars)
    interpret.run(kernel, theirs, sizes, scalars)
    return [(ours[b.name], theirs[b.name]) for b in kernel.buffers if b.written]


def pointwise(name: str, op: str, dtypes: list, out: torch.dtype, n: int, attr=None) -> Kernel:
    b = Builder()
    args = tuple(b.emit(Load(f"x{k}", r0, d)) for k, d in enumerate(dtypes))
    b.emit(Store("out", r0, b.emit(Compute(op, args, out, attr))))
    buffers = [Buffer(f"x{k}", d) for k, d in enumerate(dtypes)] + [Buffer("out", out, True)]
    return Kernel(name, (Axis(r0, Integer(n)),), (), tuple(buffers), (), (), tuple(b.body))


# ---- operations ----

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
INTEGER_OPS = (
    "neg", "abs", "not", "add", "sub", "mul", "idiv", "imod", "tdiv", "fmod", "pow", "maximum", "minimum", "and", "or",
    "xor", "shl", "shr", *COMPARISONS,
)  # fmt: skip
TO_BOOL = ("isnan", "isinf", "signbit", *COMPARISONS)
EXACT = (
    "neg", "abs", "floor", "ceil", "trunc", "rint", "add", "sub", "mul", "div", "copysign", "maximum", "minimum", "fmod"
)  # fmt: skip
UNARY = [op for op, arity in OPS.items() if arity == 1 and op not in ("not", "cast", "round", "check_index", "bitcast")]
BINARY = ["add", "sub", "mul", "div", "fmod", "pow", "atan2", "copysign", "maximum", "minimum", *COMPARISONS]
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1.5, 2.5, -2.5, 1e-3, 1e-30, -1e-30, 1e-40, -1e-45, 1e30, 3.4e38,
    -3.4e38, math.inf, -math.inf, math.nan, 87.0, -87.5, 88.7, 89.0, -103.0, -104.0, -151.0, 127.9, -125.5, 3.95, 1e5,
    -1e-8, 0.9999999,
]  # fmt: skip


def ulps(got: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """Distance in units of the last place of the true value's float32 or float64 neighbourhood."""
    bits = {F32: torch.int32, F64: torch.int64}[got.dtype]
    near = true.to(got.dtype)
    step = ((near.abs().view(bits) + 1).view(got.dtype) - near.abs()).double()
    step = torch.where(torch.isfinite(step) & (step > 0), step, 1.0)
    same = (got == near) | (got.isnan() & near.isnan())
    return torch.where(same, 0.0, (got.double() - true.double()).abs() / step)


@pytest.mark.parametrize("library", [True, False], ids=["libmvec", "portable"])
def test_float_operations(store, monkeypatch, library):
    if not library:
        monkeypatch.setattr(cpu, "_has_libmvec", lambda: False)
    cpu._command.cache_clear(), cpu.compiler_id.cache_clear()
    torch.manual_seed(0)
    spread = [torch.randn(300), torch.randn(300) * 30, torch.rand(300) * 2 - 1, torch.exp(torch.rand(300) * 160 - 80)]
    one = torch.cat([torch.tensor(SPECIAL), *spread])
    pairs = torch.tensor(list(itertools.product(SPECIAL, SPECIAL)))
    two = [torch.cat([pairs[:, 0], torch.rand(501) * 20]), torch.cat([pairs[:, 1], torch.randn(501) * 10])]
    cases = []
    for dtype in (F32, F64):
        for op in UNARY + BINARY:
            inputs = [one] if op in UNARY else two
            out = BOOL if op in TO_BOOL else dtype
            kernel = pointwise(f"{op}_{short(dtype)}", op, [dtype] * len(inputs), out, len(inputs[0]))
            cases.append((kernel, inputs))
    module = build(store, *(k for k, _ in cases))
    cpu._command.cache_clear(), cpu.compiler_id.cache_clear()
    for kernel, inputs in cases:
        dtype = kernel.buffers[0].dtype
        tensors = {f"x{k}": x.to(dtype) for k, x in enumerate(inputs)}
        tensors["out"] = torch.zeros(len(inputs[0]), dtype=kernel.buffers[-1].dtype)
        ((got, eager),) = both(module, kernel, tensors)
        op = kernel.name.rsplit("_", 1)[0]
        if op in TO_BOOL:
            assert torch.equal(got, eager), kernel.name
            continue
        exact = pointwise(op, op, [F64] * len(inputs), F64, len(inputs[0]))
        true = {n: t.double() for n, t in tensors.items()}
        interpret.run(exact, true)
        worst = ulps(got, true["out"].to(got.dtype).double()).max().item()
        # PyTorch's own sqrt, the reference, is off by one at times.
        limit = 0 if op in EXACT else 1 if op == "sqrt" else 4
        assert worst <= limit, (kernel.name, worst)
        zero = (got == 0) & (true["out"] == 0)
        assert torch.equal(got.signbit() & zero, true["out"].signbit() & zero), kernel.name


def test_exponentials_of_differences_from_a_maximum(store):
    """Down to the least subnormal, and a NaN or an infinity anywhere in the row."""
    rows = torch.cat([torch.linspace(-110, 0, 4096), torch.randn(4096) * 30, torch.tensor(SPECIAL)[:32].repeat(128)])
    rows = rows.clamp(-1e3, 1e3).view(3, 4096).repeat(4, 1)
    rows[3, 17], rows[4, 4095], rows[5, 0] = math.nan, math.inf, -math.inf
    rows[6], rows[7, 5] = -math.inf, torch.tensor(0x7FC00155, dtype=torch.int32).view(F32)
    index = 4096 * r0 + c0
    kernel = Kernel(
        "k", (Axis(r0, Integer(12)),), (Axis(c0, Integer(4096)),),
        (Buffer("x", F32), Buffer("out", F32, written=True)), (), (),
        (Load("x", index, F32), Reduce("max", 0, F32), Compute("sub", (0, 1), F32), Compute("exp", (2,), F32),
         Store("out", index, 3)),
    )  # fmt: skip
    module = build(store, kernel)
    ((got, _),) = both(module, kernel, {"x": rows, "out": torch.zeros_like(rows)})
    assert ulps(got, (rows - rows.amax(1, keepdim=True)).double().exp()).max() <= 2
    assert "exp_bounded" in CppPrinter(schedule(kernel, cpu.cpu_target()), 0).text()


@pytest.mark.parametrize("dtype", INTEGERS, ids=short)
def test_integer_operations(store, dtype):
    info = torch.iinfo(dtype)
    edge = {info.min, info.min + 1, 0, 1, 2, 3, 5, 7, info.max - 1, info.max} | ({-1, -2, -7} if info.min else set())
    a, b = torch.tensor(list(itertools.product(sorted(edge), repeat=2)), dtype=dtype).T.contiguous()
    cases = []
    for op in INTEGER_OPS:
        x, y = a, b
        if op in ("idiv", "imod", "tdiv", "fmod"):  # PyTorch itself traps on the least integer by -1
            keep = (b != 0) & ~((b == -1) & (a == info.min) if info.min else torch.zeros_like(b, dtype=BOOL))
            x, y = a[keep], b[keep]
        if op in ("shl", "shr"):
            keep = (b >= 0) & (b < info.bits)
            x, y = a[keep], b[keep]
        if op == "pow":
            keep = (b >= 0) & (b < 8)
            x, y = a[keep], b[keep]
        inputs = [x] if op in ("neg", "abs", "not") else [x, y]
        out = BOOL if op in TO_BOOL else dtype
        cases.append((pointwise(op, op, [dtype] * len(inputs), out, len(x)), inputs))
    module = build(store, *(k for k, _ in cases))
    for kernel, inputs in cases:
        tensors = {f"x{k}": x for k, x in enumerate(inputs)}
        tensors["out"] = torch.zeros(len(inputs[0]), dtype=kernel.buffers[-1].dtype)
        ((got, want),) = both(module, kernel, tensors)
        assert torch.equal(got, want), kernel.name


def test_the_least_integer_by_minus_one_does_not_trap(store):
    ops = ["idiv", "imod", "tdiv", "fmod"]
    kernels = [pointwise(f"{op}_least", op, [I64, I64], I64, 1) for op in ops]
    module = build(store, *kernels)
    least = torch.iinfo(I64).min
    for kernel, want in zip(kernels, [least, 0, least, 0]):
        tensors = {"x0": torch.tensor([least]), "x1": torch.tensor([-1]), "out": torch.zeros(1, dtype=I64)}
        run(module, kernel, tensors)
        assert tensors["out"].item() == want


def test_bools(store):
    a, b = torch.tensor(list(itertools.product([False, True], repeat=2))).T.contiguous()
    kernels = [pointwise(op, op, [BOOL, BOOL], BOOL, 4) for op in ("and", "or", "xor", "add", "mul", "eq", "ne")]
    kernels.append(pointwise("not", "not", [BOOL], BOOL, 4))
    module = build(store, *kernels)
    for kernel in kernels:
        inputs = dict(zip(("x0", "x1"), (a, b)[: len(kernel.buffers) - 1]))
        ((got, want),) = both(module, kernel, inputs | {"out": torch.zeros(4, dtype=BOOL)})
        assert torch.equal(got, want), kernel.name


def test_casts(store):
    dtypes = [BOOL, *INTEGERS, F32, F64]
    cases = [(a, b) for a in dtypes for b in dtypes if a != b]
    kernels = [pointwise(f"{short(a)}_to_{short(b)}", "cast", [a], b, 13) for a, b in cases]
    module = build(store, *kernels)
    values = torch.tensor([0.0, -0.0, 1.0, 2.0, 100.0, 0.5, 1.99, 126.7, 3.0, 77.0, 12.0, 5.0, 9.0], dtype=F64)
    for (a, b), kernel in zip(cases, kernels):
        ((got, want),) = both(module, kernel, {"x0": values.to(a), "out": torch.zeros(13, dtype=b)})
        assert torch.equal(got, want), kernel.name


NARROW = sorted(NARROW_FLOATS, key=str)


@pytest.mark.parametrize("dtype", NARROW, ids=short)
def test_every_narrow_float(store, dtype):
    """All codes load, all floats round, bit for bit as PyTorch does."""
    count = 1 << (8 * dtype.itemsize)
    codes = torch.arange(count).to({1: torch.uint8, 2: torch.uint16}[dtype.itemsize]).view(dtype)
    load, round_off = Builder(), Builder()
    load.emit(Store("out", r0, load.emit(Load("x", r0, F32))))
    x = round_off.emit(Load("x", r0, F32))
    round_off.emit(Store("out", r0, x))
    round_off.emit(Store("same", r0, round_off.emit(Compute("round", (x,), F32, dtype))))
    limits = torch.cat([codes.float(), codes.float() * 1.0001, (codes.float() + codes.roll(1).float()) / 2])
    bits = torch.cat([torch.randint(-(2**31), 2**31, (50_000,)).int(), torch.tensor([0x7F800001, -0x007FFFFF]).int()])
    floats = torch.cat([limits, torch.tensor(SPECIAL), bits.view(F32), torch.randn(10_001)])
    buffers = (Buffer("x", dtype), Buffer("out", F32, True))
    loading = Kernel("load", (Axis(r0, Integer(count)),), (), buffers, (), (), tuple(load.body))
    rounding = Kernel(
        "round_off", (Axis(r0, Integer(len(floats))),), (),
        (Buffer("x", F32), Buffer("out", dtype, True), Buffer("same", F32, True)), (), (), tuple(round_off.body),
    )  # fmt: skip
    module = build(store, loading, rounding)
    wide = torch.zeros(count)
    run(module, loading, {"x": codes, "out": wide})
    torch.testing.assert_close(wide, codes.float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(wide.signbit() & (wide == 0), codes.float().signbit() & (wide == 0))
    narrow, same = torch.zeros(len(floats), dtype=dtype), torch.zeros(len(floats))
    run(module, rounding, {"x": floats, "out": narrow, "same": same})
    torch.testing.assert_close(narrow.float(), floats.to(dtype).float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(same, floats.to(dtype).float(), rtol=0, atol=0, equal_nan=True)


def test_rand_bitcast_where_and_scalars(store):
    b = Builder()
    seed = b.emit(Scalar("seed", I64))
    draw = b.emit(Compute("rand", (seed, b.emit(Index(r0 * 7 + 2**33))), F32))
    keep = b.emit(Compute("lt", (draw, b.emit(Compute("cast", (b.emit(Scalar("p", F64)),), F32))), BOOL))
    flag = b.emit(Compute("and", (keep, b.emit(Scalar("on", BOOL))), BOOL))
    zero = b.emit(Const(-0.0, F32))
    b.emit(Store("out", r0, b.emit(Compute("where", (flag, draw, zero), F32))))
    b.emit(Store("bits", r0, b.emit(Compute("bitcast", (draw,), torch.int32))))
    kernel = Kernel(
        "draw", (Axis(r0, Integer(1001)),), (), (Buffer("out", F32, True), Buffer("bits", torch.int32, True)), (),
        (Scalar("seed", I64), Scalar("p", F64), Scalar("on", BOOL)), tuple(b.body),
    )  # fmt: skip
    module = build(store, kernel)
    for seed_value, on in ((5, True), (-(2**40) + 3, True), (9, False)):
        tensors = {"out": torch.zeros(1001), "bits": torch.zeros(1001, dtype=torch.int32)}
        for got, want in both(module, kernel, tensors, None, {"seed": seed_value, "p": 0.25, "on": on}):
            assert torch.equal(got, want)


# ---- reductions and loop shapes ----

REDUCTIONS = [
    *itertools.product(("sum", "max", "min", "argmax", "argmin"), (F32, F64, torch.bfloat16, I64, torch.int32)),
    ("prod", F32), ("prod", I64), ("any", BOOL), ("all", BOOL), ("welford", F32), ("welford", F64),
    ("max", torch.uint8),
]  # fmt: skip


def reduction(name: str, op: str, dtype: torch.dtype, rows: int, cols: int, outer: bool) -> Kernel:
    value = F32 if dtype in NARROW_FLOATS else dtype
    b = Builder()
    x = b.emit(Load("x", c0 * rows + r0 if outer else r0 * cols + c0, value))
    if op == "welford":
        pair = b.emit(Reduce(op, x, value))
        results = [b.emit(Part(pair, k, value)) for k in (0, 1)]
    else:
        if op in ("sum", "prod") and not value.is_floating_point:
            x, value = b.emit(Compute("cast", (x,), I64)), I64
        value = I64 if op.startswith("arg") else value
        results = [b.emit(Reduce(op, x, value))]
    for k, v in enumerate(results):
        b.emit(Store(f"out{k}", r0, v))
    outs = [Buffer(f"out{k}", value, True) for k in range(len(results))]
    axes = (Axis(r0, Integer(rows)),), (Axis(c0, Integer(cols)),)
    return Kernel(name, *axes, (Buffer("x", dtype), *outs), (), (), tuple(b.body))


def sample(n: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype == BOOL:
        return torch.rand(n) < 0.97
    if dtype.is_floating_point:
        return (torch.randn(n) * 0.5 + 1).to(dtype)
    return torch.randint(0, 100, (n,)).to(dtype)


SHAPES = [(5, 257), (1, 1), (37, 5), (300, 33), (1, 150_001), (0, 4), (3, 0)]
#: What the other shapes are tried with, for the sake of time.
FEW = [("sum", F32), ("max", torch.bfloat16), ("min", I64), ("argmax", F32), ("welford", F32), ("any", BOOL)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reductions(store, shape):
    rows, cols = shape
    torch.manual_seed(1)
    cases = []
    for k, (op, dtype) in enumerate(REDUCTIONS if shape == SHAPES[0] else FEW):
        if cols or op in ("sum", "prod", "any", "all"):
            cases += [reduction(f"{op}_{k}_{outer:d}", op, dtype, rows, cols, outer) for outer in (False, True)]
    module = build(store, *cases)
    for kernel in cases:
        x = sample(rows * cols, kernel.buffers[0].dtype)
        outs = {b.name: torch.zeros(rows, dtype=b.dtype) for b in kernel.buffers[1:]}
        for got, want in both(module, kernel, {"x": x, **outs}):
            if kernel.name.startswith(("sum", "prod", "welford")):
                torch.testing.assert_close(got, want, rtol=3e-4 if got.dtype == F32 else 1e-9, atol=1e-5)
            else:
                assert torch.equal(got, want), kernel.name


def test_extrema_propagate_nan_and_argmax_finds_it(store):
    cases = [
        reduction(f"{op}_{outer:d}", op, F32, 3, 200, outer)
        for op in ("max", "min", "argmax", "argmin") for outer in (False, True)
    ]  # fmt: skip
    module = build(store, *cases)
    x = torch.randn(3, 200)
    x[1, [70, 199]] = math.nan
    x[2, [5, 9]], x[2, [11, 30]] = math.inf, -math.inf
    for kernel in cases:
        data = x.T if kernel.name.endswith("_1") else x
        tensors = {"x": data.contiguous(), "out0": torch.zeros(3, dtype=kernel.buffers[-1].dtype)}
        run(module, kernel, tensors)
        want = getattr(x, kernel.name[:-2] if kernel.name.startswith("arg") else f"a{kernel.name[:-2]}")(1)
        torch.testing.assert_close(tensors["out0"], want, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("outer", [False, True], ids=["inner", "outer"])
def test_sums_are_as_exact_as_eager(store, outer):
    rows, cols = 3, 300_000
    kernel = reduction("long_sum", "sum", F32, rows, cols, outer)
    module = build(store, kernel)
    torch.manual_seed(2)
    x = torch.rand(rows, cols)
    tensors = {"x": (x.T if outer else x).contiguous(), "out0": torch.zeros(rows)}
    run(module, kernel, tensors)
    error = lambda y: ((y.double() - x.double().sum(1)).abs() / x.double().sum(1)).max().item()
    assert error(tensors["out0"]) <= max(2 * error(x.sum(1)), 2**-23)


# ---- indices, memory, segments ----


def gather(wrap_negative: bool) -> Kernel:
    s = Symbol("s0", integer=True, positive=True)
    b = Builder()
    raw = b.emit(Load("index", r0, I64))
    checked = b.emit(Compute("check_index", (raw,), I64, (s, wrap_negative, "index out of range in self")))
    b.emit(Store("out", r0 * 5 + r1, b.emit(Load("table", value_symbol(checked) * 5 + r1, F32))))
    buffers = (Buffer("table", F32), Buffer("index", I64), Buffer("out", F32, True))
    rows = (Axis(r0, Integer(9)), Axis(r1, Integer(5)))
    return Kernel(f"gather{wrap_negative:d}", rows, (), buffers, (s,), (), tuple(b.body))


def test_index_checks(store):
    plain, wrapping = gather(False), gather(True)
    module = build(store, plain, wrapping)
    tensors = {"table": torch.randn(4, 5), "index": torch.tensor([0, 1, 2, 3, 3, 2, 1, 0, 2]), "out": torch.zeros(9, 5)}
    for kernel in (plain, wrapping):
        ((got, want),) = both(module, kernel, tensors, {kernel.sizes[0]: 4})
        assert torch.equal(got, want)
    tensors["index"][4] = -4
    ((got, want),) = both(module, wrapping, tensors, {wrapping.sizes[0]: 4})
    assert torch.equal(got, want)
    for kernel, bad in ((plain, -1), (plain, 4), (wrapping, -5), (wrapping, 4), (plain, 2**62)):
        tensors["index"][4] = bad
        with pytest.raises(IndexError, match="index out of range in self"):
            run(module, kernel, tensors, {kernel.sizes[0]: 4})
    with pytest.raises(IndexError):
        run(module, plain, tensors | {"table": torch.empty(0, 5)}, {plain.sizes[0]: 0})


def test_updates_in_place(store):
    b = Builder()
    x = b.emit(Load("x", r0 * 100 + c0, F32))
    mean = b.emit(Compute("mul", (b.emit(Reduce("sum", x, F32)), b.emit(Const(0.01, F32))), F32))
    b.emit(Store("x", r0 * 100 + c0, b.emit(Compute("sub", (x, mean), F32))))
    running = b.emit(Load("running", r0, F32))
    b.emit(Store("running", r0, b.emit(Compute("add", (running, mean), F32))))
    buffers = (Buffer("x", F32, True), Buffer("running", F32, True))
    kernel = Kernel("centre", (Axis(r0, Integer(7)),), (Axis(c0, Integer(100)),), buffers, (), (), tuple(b.body))
    for got, want in both(build(store, kernel), kernel, {"x": torch.randn(7, 100), "running": torch.randn(7)}):
        torch.testing.assert_close(got, want)


def softmax(name: str, rows, cols, dtype=F32, sizes=(), stride=1) -> Kernel:
    b = Builder()
    place = (r0 * cols + c0) * stride
    x = b.emit(Load("x", place, F32))
    e = b.emit(Compute("exp", (b.emit(Compute("sub", (x, b.emit(Reduce("max", x, F32))), F32)),), F32))
    b.emit(Store("out", r0 * cols + c0, b.emit(Compute("div", (e, b.emit(Reduce("sum", e, F32))), F32))))
    axes = (Axis(r0, sympy.sympify(rows)),), (Axis(c0, sympy.sympify(cols)),)
    return Kernel(name, *axes, (Buffer("x", dtype), Buffer("out", dtype, True)), sizes, (), tuple(b.body))


def test_symbolic_sizes_and_unaligned_pointers(store):
    s0, s1 = (Symbol(n, integer=True, positive=True) for n in ("s0", "s1"))
    kernel = softmax("symbolic", s0, s1, torch.bfloat16, (s0, s1), stride=2)
    module = build(store, kernel)
    for rows, cols in ((1, 1), (3, 17), (5, 1000), (2, 70_001), (0, 5), (700, 3)):
        x = torch.randn(2 * rows * cols + 1).bfloat16()[1:]
        tensors = {"x": x, "out": torch.zeros(rows * cols + 1, dtype=torch.bfloat16)[1:]}
        run(module, kernel, tensors, {s0: rows, s1: cols})
        want = x[::2].view(rows, cols).float().softmax(-1)
        torch.testing.assert_close(tensors["out"].view(rows, cols).float(), want, rtol=2**-8, atol=1e-7)


def test_segments_share_scratch(store):
    n = 1000
    one = Kernel(
        "double", (Axis(r0, Integer(n)),), (), (Buffer("a", F32), Buffer("b", F32, True)), (), (),
        (Load("a", r0, F32), Compute("add", (0, 0), F32), Store("b", r0, 1)),
    )  # fmt: skip
    scratch = tuple(Scratch(f"t{k}", Integer(4 * n)) for k in range(3))
    chain = ["x", "t0", "t1", "t2", "y"]
    calls = tuple(Call("double", pair) for pair in itertools.pairwise(chain))
    segment = Segment("chain", ("x", "y"), (), (), scratch, calls)
    module = cpu.build_module([one], [segment], store)
    _, size = segment.place_scratch()
    assert size == 2 * 4032  # t2 takes the place of t0
    x, y, memory = torch.randn(n), torch.zeros(n), torch.empty(int(size), dtype=torch.uint8)
    module.entry("chain")(x, y, memory)
    assert torch.equal(y, x * 16)


def test_arguments_are_checked(store):
    kernel = pointwise("plus", "add", [F32, F32], F32, 4)
    entry = build(store, kernel).entry("run_plus")
    with pytest.raises(TypeError, match="takes 3 arguments, 2 were given"):
        entry(torch.zeros(4), torch.zeros(4))
    with pytest.raises(AttributeError, match="data_ptr"):
        entry(torch.zeros(4), torch.zeros(4), 3.5)


# ---- the runtime ----


def test_one_thread_pool_with_pytorch(store):
    kernel = softmax("pool", 600, 700)
    module = build(store, kernel)
    torch.randn(1000, 1000) @ torch.randn(1000, 1000)
    run(module, kernel, {"x": torch.randn(600, 700), "out": torch.zeros(600, 700)})
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    libraries = {line.split()[-1] for line in maps.read_text().splitlines() if re.search(r"lib[gi]?omp", line)}
    assert len(libraries) == 1, libraries


def test_results_do_not_depend_on_timing_and_threads_are_honoured(store):
    kernel = reduction("total", "sum", F32, 1, 1_000_003, False)
    module = build(store, kernel)
    x = torch.randn(1_000_003)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results = set()
            for _ in range(5):
                out = torch.zeros(1)
                run(module, kernel, {"x": x, "out0": out})
                results.add(out.item())
            assert len(results) == 1
            assert abs(out.item() - x.double().sum().item()) < 1e-2
    finally:
        torch.set_num_threads(before)


def layer_norm_gelu(name: str, cols: int, dtype: torch.dtype) -> Kernel:
    b = Builder()
    f = lambda op, *args: b.emit(Compute(op, args, F32))
    k = lambda x: b.emit(Const(x, F32))
    x = b.emit(Load("x", r0 * cols + c0, F32))
    pair = b.emit(Reduce("welford", x, F32))
    mean, variance = b.emit(Part(pair, 0, F32)), f("div", b.emit(Part(pair, 1, F32)), k(float(cols)))
    y = f("mul", f("sub", x, mean), f("rsqrt", f("add", variance, k(1e-5))))
    y = f("add", f("mul", y, b.emit(Load("w", c0, F32))), b.emit(Load("b", c0, F32)))
    y = f("mul", f("mul", y, k(0.5)), f("add", f("erf", f("mul", y, k(0.5**0.5))), k(1.0)))
    b.emit(Store("out", r0 * cols + c0, f("add", y, b.emit(Load("res", r0 * cols + c0, F32)))))
    buffers = tuple(Buffer(n, dtype, n == "out") for n in ("x", "w", "b", "res", "out"))
    return Kernel(name, (Axis(r0, Integer(50)),), (Axis(c0, Integer(cols)),), buffers, (), (), tuple(b.body))


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16], ids=short)
def test_layer_norm_with_gelu(store, dtype):
    kernel = layer_norm_gelu("norm", 1000, dtype)
    x, res = (torch.randn(50, 1000).to(dtype) for _ in range(2))
    w, b = torch.randn(1000).to(dtype), torch.randn(1000).to(dtype)
    out = torch.zeros(50, 1000, dtype=dtype)
    run(build(store, kernel), kernel, {"x": x, "w": w, "b": b, "res": res, "out": out})
    norm = torch.nn.functional.layer_norm(x.double(), (1000,), w.double(), b.double())
    want = torch.nn.functional.gelu(norm) + res.double()
    torch.testing.assert_close(out.double(), want, rtol=2**-8 if dtype != F32 else 1e-5, atol=1e-5)


def test_every_loop_is_vectorised(tmp_path):
    compiler = cpu._compiler()
    if not compiler.is_gcc or cpu.cpu_target().vector_bytes < 32:
        pytest.skip("reads GCC's report on a machine with wide vectors")
    dtypes = {"single": F32, "half": torch.bfloat16}
    kernels = [layer_norm_gelu(f"norm_{n}", 1024, d) for n, d in dtypes.items()]
    kernels += [softmax(f"softmax_{n}", 50, 1024, d) for n, d in dtypes.items()]
    source = cpu.module_source(kernels, [wrap(k) for k in kernels], cpu.cpu_target()).text
    (tmp_path / "module.cpp").write_text(source)
    command = [*cpu._command(), "-fopt-info-vec-optimized", "-c", "module.cpp"]
    report = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stderr
    done = {int(n) for n in re.findall(r"module\.cpp:(\d+):\d+: optimized: loop vectorized", report)}
    lines = source.splitlines()
    simple = [i + 2 for i, line in enumerate(lines) if "#pragma omp simd" in line]
    assert simple
    # GCC names the line of the loop or that of its first statement.
    missing = [lines[n - 1] for n in simple if n not in done and n + 1 not in done]
    assert not missing
    header = (Path(cpu._HEADERS) / "cpp_runtime.h").read_text().splitlines()
    wide = next(i + 1 for i, line in enumerate(header) if "step(low + l, l)" in line)
    reports = len(re.findall(rf"cpp_runtime\.h:{wide}:\d+: optimized: loop vectorized", report))
    assert reports >= source.count("each_lane<")


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    cpu._compiler.cache_clear()
    with pytest.raises(CompilerMissing, match="no-such-compiler"):
        cpu._compiler()
    monkeypatch.undo()
    cpu._compiler.cache_clear()


def test_a_rejected_source_comes_with_the_log(tmp_path):
    with pytest.raises(CompileError, match="failed with status") as error:
        cpu._compile(cpu.ModuleSource("int main( {", 1), tmp_path)
    assert "module.cpp" in error.value.log
    assert error.value.source == "int main( {"


def test_modules_come_from_the_store(store):
    kernel = pointwise("again", "add", [F32, F32], F32, 4)
    first, second = build(store, kernel), build(store, kernel)
    assert first.compile_seconds > 0
    assert second.compile_seconds == 0
    assert first.path == second.path
