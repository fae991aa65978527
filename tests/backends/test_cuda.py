"""Builds ahead of time for every architecture of the table, and the launch function."""

from __future__ import annotations

import math

import pytest
import sympy
import torch

from optpass.autotune.arch import target
from optpass.codegen.expr import Symbol, axis_symbol, floor_div, value_symbol
from optpass.codegen.ir import OPS, Axis, Buffer, Compute, Const, Index, Kernel, Load, Part, Reduce, Store
from optpass.codegen.tiles import Tile
from optpass.errors import CompileError

pytestmark = pytest.mark.triton
triton = pytest.importorskip("triton")

from optpass.backends import cuda, rocm, triton_build  # noqa: E402
from optpass.backends.cache import Store as FileStore  # noqa: E402
from optpass.codegen.printers.triton import TritonSource  # noqa: E402
from optpass.testing.triton_check import build_ahead  # noqa: E402

R0, R1, C0 = axis_symbol("r0"), axis_symbol("r1"), axis_symbol("c0")
F32, F64, I32, I64, BF16, BOOL = torch.float32, torch.float64, torch.int32, torch.int64, torch.bfloat16, torch.bool
ARCHS = ["sm_80", "sm_90", "sm_100", "gfx942"]


def pointwise(name: str, count: int, dtype: torch.dtype, *body, inputs=("a",), out=None) -> Kernel:
    """Loads of the inputs, then the given operations; the last one is stored."""
    wide = F32 if dtype == BF16 else dtype
    loads = [Load(i, R0, wide) for i in inputs]
    instructions = (*loads, *body, Store("out", R0, len(loads) + len(body) - 1))
    buffers = (*(Buffer(i, dtype) for i in inputs), Buffer("out", out or dtype, True))
    return Kernel(name, (Axis(R0, count),), (), buffers, (), (), instructions)


def softmax(rows: int, cols: int, dtype: torch.dtype) -> Kernel:
    place = R0 * cols + C0
    body = (
        Load("a", place, F32), Reduce("max", 0, F32), Compute("sub", (0, 1), F32), Compute("exp", (2,), F32),
        Reduce("sum", 3, F32), Compute("div", (3, 4), F32), Store("out", place, 5),
    )  # fmt: skip
    buffers = (Buffer("a", dtype), Buffer("out", dtype, True))
    return Kernel("softmax", (Axis(R0, rows),), (Axis(C0, cols),), buffers, (), (), body)


def layer_norm(rows: int, cols: int) -> Kernel:
    place = R0 * cols + C0
    body = (
        Load("a", place, F32), Load("w", C0, F32), Reduce("welford", 0, F32), Part(2, 0, F32), Part(2, 1, F32),
        Const(1 / cols, F32), Compute("mul", (4, 5), F32), Compute("rsqrt", (6,), F32), Compute("sub", (0, 3), F32),
        Compute("mul", (8, 7), F32), Compute("mul", (9, 1), F32), Compute("erf", (10,), F32),
        Compute("mul", (10, 11), F32), Store("out", place, 12),
    )  # fmt: skip
    buffers = (Buffer("a", BF16), Buffer("w", BF16), Buffer("out", BF16, True))
    return Kernel("norm", (Axis(R0, rows),), (Axis(C0, cols),), buffers, (), (), body)


def folds(rows: int, cols: int, transposed: bool) -> Kernel:
    """Every reduction of floats at once."""
    load = Load("a", C0 * rows + R0 if transposed else R0 * cols + C0, F32)
    body, buffers = [load], [Buffer("a", BF16)]
    for op in ("sum", "prod", "max", "argmin", "welford"):
        out = I64 if op == "argmin" else F32
        body.append(Reduce(op, 0, out))
        if op == "welford":
            body.append(Part(len(body) - 1, 1, F32))
        body.append(Store(op, R0, len(body) - 1))
        buffers.append(Buffer(op, out, True))
    return Kernel("folds", (Axis(R0, rows),), (Axis(C0, cols),), tuple(buffers), (), (), tuple(body))


def transpose(m: int, n: int) -> Kernel:
    body = (Load("a", R1 * m + R0, F32), Store("out", R0 * n + R1, 0))
    buffers = (Buffer("a", BF16), Buffer("out", BF16, True))
    return Kernel("transpose", (Axis(R0, m), Axis(R1, n)), (), buffers, (), (), body)


def embedding() -> Kernel:
    body = (Load("index", R0, I64), Compute("check_index", (0,), I64, (50257, True, "index out of range")),
            Load("table", value_symbol(1) * 1024 + R1, F32), Store("out", R0 * 1024 + R1, 2))  # fmt: skip
    buffers = (Buffer("index", I64), Buffer("table", BF16), Buffer("out", BF16, True))
    return Kernel("embedding", (Axis(R0, 4096), Axis(R1, 1024)), (), buffers, (), (), body)


def dropout() -> Kernel:
    body = (Load("seed", sympy.S.Zero, I64), Index(R0), Compute("rand", (0, 1), F32), Const(0.1, F32),
            Compute("ge", (2, 3), BOOL), Load("a", R0, F32), Const(0.0, F32), Compute("where", (4, 5, 6), F32),
            Store("out", R0, 7))  # fmt: skip
    buffers = (Buffer("seed", I64), Buffer("a", BF16), Buffer("out", BF16, True))
    return Kernel("dropout", (Axis(R0, 1 << 24),), (), buffers, (), (), body)


KERNELS = {
    "softmax, one row": softmax(16384, 4096, BF16),
    "softmax, longest row in registers": softmax(1024, 16384, BF16),
    "softmax, looped": softmax(8192, 50257, BF16),
    "softmax, several rows": softmax(65536, 64, F32),
    "layer norm": layer_norm(16384, 4096),
    "folds": folds(8192, 1000, False),
    "folds, looped": folds(64, 50257, False),
    "folds of columns": folds(4096, 16384, True),
    "transpose": transpose(4096, 4096),
    "embedding": embedding(),
    "dropout": dropout(),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", KERNELS)
def test_builds_without_spills(name: str, arch: str):
    used = build_ahead(KERNELS[name], arch)
    assert used.stack_bytes == 0
    assert used.shared_bytes <= target(arch).shared_bytes


NOT_FLOAT = {
    "idiv", "imod", "tdiv", "and", "or", "xor", "not", "shl", "shr", "check_index", "bitcast", "rand", "cast", "round",
    "where",
}  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_every_float_operation_builds(dtype: torch.dtype, arch: str):
    """One kernel with the sum of all operations: the GPU's library has the functions that the test harness replaces."""
    predicates = {"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "signbit"}
    body: list = []
    total = 0
    for op in [o for o in OPS if o not in NOT_FLOAT]:
        body.append(Compute(op, (0, 1)[: OPS[op]], BOOL if op in predicates else dtype))
        if op in predicates:
            body.append(Compute("cast", (len(body) + 1,), dtype))
        body.append(Compute("add", (total, len(body) + 1), dtype))
        total = len(body) + 1
    kernel = pointwise("zoo", 1 << 20, dtype, *body, inputs=("a", "b"))
    build_ahead(kernel, arch, choice=Tile(x=kernel.rows, x_block=128, num_warps=4))


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
@pytest.mark.parametrize("dtype", [torch.int8, I32, I64, torch.uint8], ids=str)
def test_every_integer_operation_builds(dtype: torch.dtype, arch: str):
    body: list = []
    total = 0
    for op in [
        "idiv",
        "imod",
        "tdiv",
        "fmod",
        "pow",
        "and",
        "or",
        "xor",
        "not",
        "shl",
        "shr",
        "maximum",
        "minimum",
        "neg",
        "abs",
    ]:
        body.append(Compute(op, (0, 1)[: OPS[op]], dtype))
        body.append(Compute("add", (total, len(body) + 1), dtype))
        total = len(body) + 1
    build_ahead(pointwise("zoo", 1 << 20, dtype, *body, inputs=("a", "b")), arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
def test_narrow_dtypes_build(arch: str):
    for dtype in (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        if dtype in target(arch).unsupported:
            continue
        rounded = (Compute("round", (0,), F32, dtype),)
        build_ahead(pointwise("narrow", 4096, F32, *rounded, out=dtype), arch)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, I32, F64, BOOL], ids=str)
def test_reductions_of_every_dtype_build(dtype: torch.dtype):
    ops = ("any", "all") if dtype == BOOL else ("sum", "prod", "max", "min", "argmax")
    body, buffers = [Load("a", R0 * 1000 + C0, dtype)], [Buffer("a", dtype)]
    for op in ops:
        out = I64 if op == "argmax" else dtype
        body += [Reduce(op, 0, out), Store(op, R0, len(body))]
        buffers.append(Buffer(op, out, True))
    for cols in (1000, 100000):
        build_ahead(Kernel("folds", (Axis(R0, 64),), (Axis(C0, cols),), tuple(buffers), (), (), tuple(body)), "sm_90")


def test_accesses_are_vectors_where_pointers_are_aligned():
    kernel = pointwise("half", 1 << 20, BF16, Const(0.5, F32), Compute("mul", (0, 1), F32))
    assert "ld.global.v4.b32" in build_ahead(kernel, "sm_90").text
    assert "ld.global.b16" in build_ahead(kernel, "sm_90", aligned=False).text


def test_symbolic_sizes_build():
    m, n = Symbol("s0", integer=True, positive=True), Symbol("s1", integer=True, positive=True)
    kernel = softmax(16, 16, F32)
    place = R0 * n + C0
    body = (Load("a", place, F32), *kernel.body[1:-1], Store("out", place, 5))
    build_ahead(Kernel("soft", (Axis(R0, m),), (Axis(C0, n),), kernel.buffers, (m, n), (), body), "sm_90")


def test_error_holds_source_and_log():
    text = "import triton\n\n\n@triton.jit\ndef broken(a_ptr):\n    nothing.at_all()\n"
    source = TritonSource("broken", text, (("a_ptr", "*fp32"),), (), sympy.S.One, 4, False)
    with pytest.raises(CompileError, match="nothing is not defined") as caught:
        triton_build.compile_source(source, "sm_90")
    assert caught.value.source == text


def test_several_kernels_build_at_once_into_a_store(tmp_path):
    store = FileStore(tmp_path)
    kernels = [pointwise(f"k{i}", 1 << 16, F32, Const(float(i), F32), Compute("mul", (0, 1), F32)) for i in range(3)]
    launchers = cuda.build_kernels(kernels, target("sm_90"), store)
    assert list(launchers) == ["k0", "k1", "k2"]
    assert all("cubin" in launcher.build().asm for launcher in launchers.values())
    assert store.stats().entries == 3
    assert "hsaco" in rocm.build_kernels(kernels[:1], target("gfx942"))["k0"].build().asm


class _Recorder(dict):
    """Stands in for the loaded builds of a launcher."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __missing__(self, aligned: bool) -> tuple:
        run = lambda *args: self.calls.append((aligned, args))
        return run, "function", "metadata", 7


@pytest.fixture
def record(monkeypatch):
    monkeypatch.setattr(cuda, "current_raw_stream", lambda device: 100 + device)
    recorder = _Recorder()
    return recorder


def test_launch_passes_pointers_sizes_scalars_and_constants(record):
    s0 = Symbol("s0", integer=True, positive=True)
    signature = (
        ("a_ptr", "*fp32"),
        ("out_ptr", "*fp32"),
        ("s0", "i64"),
        ("scale_arg", "fp64"),
        ("XBLOCK", "constexpr"),
    )
    source = TritonSource("k", "", signature, (("XBLOCK", 128),), floor_div(s0 + 127, sympy.Integer(128)), 4, False)
    launch = cuda._launch_function(source, record)
    a, out = torch.empty(300), torch.empty(300)
    launch(a, out, 300, 0.5)
    launch(a, out[1:], 0, 0.5)
    launch(a, out[1:], 1, 0.5)
    pointers = (a.data_ptr(), out.data_ptr())
    head = lambda programs: (programs, 1, 1, 107, "function", "metadata", None, None, None)
    assert record.calls == [
        (True, (*head(3), *pointers, 300, 0.5, 128)),
        (False, (*head(1), pointers[0], pointers[1] + 4, 1, 0.5, 128)),
    ]


def test_nothing_is_launched_for_an_empty_domain(record):
    source = TritonSource("k", "", (("a_ptr", "*fp32"),), (), sympy.S.Zero, 4, False)
    cuda._launch_function(source, record)(torch.empty(0))
    assert record.calls == []


# -- on a card --

needs_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.mark.cuda
@needs_card
def test_launches_aligned_and_unaligned():
    kernel = pointwise("half", 1001, BF16, Const(0.5, F32), Compute("mul", (0, 1), F32))
    launch = cuda.build_kernels([kernel], cuda.cuda_target(0))["half"]
    memory = torch.randn(1010, device="cuda").bfloat16()
    for a in (memory[:1001], memory[3:1004]):
        out = torch.empty_like(a)
        launch(a, out)
        assert torch.equal(out, a * 0.5)
    assert launch.registers and launch.registers[1] == 0


@pytest.mark.cuda
@needs_card
def test_softmax_on_a_side_stream():
    launch = cuda.build_kernels([softmax(64, 1000, BF16)], cuda.cuda_target(0))["softmax"]
    a = torch.randn(64, 1000, device="cuda").bfloat16()
    out = torch.empty_like(a)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launch(a, out)
    stream.synchronize()
    torch.testing.assert_close(out, a.float().softmax(-1).bfloat16())


def test_target_table():
    assert target("sm_90").unsupported.isdisjoint({torch.float8_e4m3fn, BF16})
    assert torch.float8_e4m3fn in target("sm_80").unsupported
    assert math.log2(target("gfx942").row_bytes).is_integer()
