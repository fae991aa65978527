"""Random kernels: layouts, levels, dtypes, masks, symbolic sizes; built for C++ and compared with the interpreter."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import pytest
import sympy
import torch

from optpass.backends import cpu
from optpass.backends.cache import Store as ArtefactStore
from optpass.codegen import interpret, loops
from optpass.codegen.expr import Integer, Symbol, axis_symbol
from optpass.codegen.ir import (
    NARROW_FLOATS,
    Axis,
    Buffer,
    Builder,
    Compute,
    Index,
    Kernel,
    Load,
    Part,
    Reduce,
    Store,
    live,
)
from optpass.codegen.printers import cpp
from optpass.codegen.segment import Call, Segment

pytestmark = pytest.mark.cpu

F32, I64, BOOL = torch.float32, torch.int64, torch.bool
LOADED = [F32] * 6 + [torch.bfloat16] * 3
LOADED += [torch.float16, torch.float64, I64, torch.int32, torch.uint8, BOOL, torch.int8]
SIZES = [1, 2, 3, 5, 7, 8, 16, 17, 31, 64, 100, 130, 257]


class Case:
    """One random kernel with its tensors; ``rng`` decides everything."""

    def __init__(self, rng: random.Random, name: str, symbolic: bool) -> None:
        self.rng, self.builder = rng, Builder()
        self.sizes: dict[Symbol, int] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.buffers: list[Buffer] = []
        self.values: list[tuple[int, torch.dtype]] = []
        rows, cols = rng.choice([0, 1, 1, 2, 2, 3]), rng.choice([0, 0, 1, 1, 2])
        self.axes = self.draw_axes(rows, cols, symbolic)
        self.rows, self.cols = self.axes[:rows], self.axes[rows:]
        self.has_cols = cols > 0
        for _ in range(rng.randint(1, 4)):
            self.load()
        for step in range(rng.randint(2, 8) + 2 * self.has_cols):
            self.reduce() if self.has_cols and step % 2 and rng.random() < 0.7 else self.compute()
        self.store(*self.values[-1])
        for _ in range(rng.randint(0, 2)):
            self.store(*rng.choice(self.values))
        body, _ = live(self.builder.body)
        used = {i.buffer for i in body if isinstance(i, Load | Store)}
        self.buffers = [b for b in self.buffers if b.name in used]
        self.tensors = {b.name: self.tensors[b.name] for b in self.buffers}
        self.kernel = Kernel(
            name, tuple(a for a, _ in self.rows), tuple(a for a, _ in self.cols),
            tuple(self.buffers), tuple(self.sizes), (), body,
        )  # fmt: skip

    def draw_axes(self, rows: int, cols: int, symbolic: bool) -> list[tuple[Axis, int]]:
        out, total = [], 1
        for k in range(rows + cols):
            n = self.rng.choice(SIZES if total < 500 else [1, 2, 3])
            if k == rows + cols - 1 and total < 20 and self.rng.random() < 0.3:
                n = self.rng.choice([3000, 4096, 5000])
            total *= n
            size = Integer(n)
            if symbolic and self.rng.random() < 0.5:
                size = Symbol(f"s{k}", integer=True, positive=True)
                self.sizes[size] = n
            out.append((Axis(axis_symbol(f"r{k}" if k < rows else f"c{k - rows}"), size), n))
        return out

    def layout(self, axes: list[tuple[Axis, int]]) -> tuple[sympy.Expr, int]:
        """An index with dense, permuted or padded strides, and the elements that it spans."""
        order, stride, index = list(axes), Integer(1), Integer(0)
        if self.rng.random() < 0.4:
            self.rng.shuffle(order)
        pad = 3 * (self.rng.random() < 0.15)
        span = 1
        for axis, n in reversed(order):
            index += stride * axis.symbol
            span += (n - 1) * int(stride.subs(self.sizes))
            stride = stride * axis.size + pad
        return index, span

    def load(self) -> None:
        rng, dtype, name = self.rng, self.rng.choice(LOADED), f"x{len(self.buffers)}"
        axes = self.rows if rng.random() < 0.3 else self.axes
        index, span = self.layout([a for a in axes if rng.random() < 0.8])
        offset = rng.choice([0, 0, 1])
        if dtype.is_floating_point:
            data = torch.randn(span + offset).to(dtype)
        else:
            data = torch.randint(0 if dtype in (torch.uint8, BOOL) else -5, 6, (span + offset,)).to(dtype)
        self.tensors[name] = data[offset:]
        self.buffers.append(Buffer(name, dtype))
        masks = [v for v, d in self.values if d == BOOL]
        wide = F32 if dtype in NARROW_FLOATS else dtype
        mask = rng.choice(masks) if masks and rng.random() < 0.3 else None
        self.values.append((self.builder.emit(Load(name, index, wide, mask, 1)), wide))

    def emit(self, op: str, args: tuple[int, ...], dtype: torch.dtype) -> None:
        self.values.append((self.builder.emit(Compute(op, args, dtype)), dtype))

    def cast(self, value: int, have: torch.dtype, want: torch.dtype) -> int:
        return value if have == want else self.builder.emit(Compute("cast", (value,), want))

    def compute(self) -> None:
        rng = self.rng
        (a, d), (b, e) = rng.choice(self.values), rng.choice(self.values)
        if d == BOOL and rng.random() < 0.7:
            other = rng.choice([v for v, t in self.values if t == e])
            self.emit("where", (a, b, other), e)
        elif d == BOOL:
            self.emit(rng.choice(["and", "or", "xor"]), (a, self.cast(b, e, BOOL)), BOOL)
        elif d.is_floating_point:
            op = rng.choice(["add", "sub", "mul", "maximum", "minimum", "lt", "ge", "tanh", "erf", "sqrt", "floor"])
            args = (a,) if op in ("tanh", "erf", "sqrt", "floor") else (a, self.cast(b, e, d))
            self.emit(op, args, BOOL if op in ("lt", "ge") else d)
        else:
            op = rng.choice(["add", "sub", "mul", "maximum", "minimum", "eq", "lt", "and", "xor"])
            args = (a, a if e.is_floating_point else self.cast(b, e, d))
            self.emit(op, args, BOOL if op in ("eq", "lt") else d)
        if self.axes and rng.random() < 0.1:
            self.values.append((self.builder.emit(Index(rng.choice(self.axes)[0].symbol * 2 + 1)), I64))

    def reduce(self) -> None:
        rng = self.rng
        value, dtype = rng.choice(self.values)
        if dtype == BOOL:
            self.values.append((self.builder.emit(Reduce(rng.choice(["any", "all"]), value, BOOL)), BOOL))
            return
        op = rng.choice(["sum", "sum", "max", "min", "argmax", "argmin", "welford"])
        if op == "welford":
            kind = dtype if dtype.is_floating_point else F32
            pair = self.builder.emit(Reduce(op, self.cast(value, dtype, kind), kind))
            self.values += [(self.builder.emit(Part(pair, k, kind)), kind) for k in (0, 1)]
            return
        if op == "sum" and not dtype.is_floating_point:
            value, dtype = self.cast(value, dtype, I64), I64
        result = I64 if op.startswith("arg") else dtype
        self.values.append((self.builder.emit(Reduce(op, value, result)), result))

    def store(self, value: int, dtype: torch.dtype) -> None:
        so_far = Kernel("", (), tuple(a for a, _ in self.cols), (), (), (), tuple(self.builder.body))
        full = so_far.is_full[value] or not so_far.reductions
        index, span = self.layout(self.axes if full else self.rows)
        stored = self.rng.choice([F32, F32, torch.bfloat16, torch.float16]) if dtype == F32 else dtype
        name = f"out{len(self.buffers)}"
        self.buffers.append(Buffer(name, stored, True))
        self.tensors[name] = torch.zeros(span, dtype=stored)
        self.builder.emit(Store(name, index, value))


def segment(kernel: Kernel) -> Segment:
    buffers = tuple(b.name for b in kernel.buffers)
    return Segment(f"run_{kernel.name}", buffers, kernel.sizes, (), (), (Call(kernel.name, buffers),))


def assert_close(got: torch.Tensor, want: torch.Tensor, kernel: Kernel) -> None:
    if not got.dtype.is_floating_point:
        assert torch.equal(got, want), str(kernel)
        return
    # Sums in another order, carried through a few operations: relative to the largest value around.
    finite = want.double()[want.double().isfinite()].abs()
    scale = max(1.0, finite.max().item() if finite.numel() else 0.0)
    near = partial(torch.allclose, rtol=2**-7 if got.dtype.itemsize == 2 else 1e-3, atol=1e-3 * scale, equal_nan=True)
    assert near(got.double(), want.double()), str(kernel)


@pytest.mark.parametrize("parallel", [False, True], ids=["as-is", "all-parallel"])
def test_random_kernels(tmp_path, monkeypatch, parallel):
    """Fixed seeds. In the second run every kernel is cut into shares for threads, however small it is."""
    if parallel:
        monkeypatch.setattr(loops, "PARALLEL_WORK", 1)
        monkeypatch.setattr(cpp, "PARALLEL_WORK", 1)
    torch.manual_seed(0)
    cases = [Case(random.Random(1000 * parallel + i), f"k{i}", bool(i % 2)) for i in range(40)]
    kernels = [c.kernel for c in cases]
    module = cpu.build_module(kernels, [segment(k) for k in kernels], ArtefactStore(tmp_path))
    shapes: Counter[str] = Counter()
    for case in cases:
        ours, theirs = ({n: t.clone() for n, t in case.tensors.items()} for _ in range(2))
        module.entry(f"run_{case.kernel.name}")(*ours.values(), *case.sizes.values())
        interpret.run(case.kernel, theirs, case.sizes)
        for b in case.kernel.buffers:
            if b.written:
                assert_close(ours[b.name], theirs[b.name], case.kernel)
        plan = loops.schedule(case.kernel, cpu.cpu_target())
        shapes["lanes" if plan.lane else "plain"] += 1
        shapes["split"] += plan.split is not None
        shapes["tile"] += plan.tile
    assert min(shapes[s] for s in ("lanes", "plain", "split", "tile")) > 0, shapes
