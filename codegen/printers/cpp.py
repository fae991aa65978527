"""Kernels as C++ functions: plain loops that the compiler vectorises, with OpenMP for threads and SIMD."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import sympy
import torch

from optpass.codegen.expr import Expr
from optpass.codegen.ir import Axis, Compute, Const, Load, Reduce, Scalar, Store, arguments, indirect
from optpass.codegen.loops import LANE_BLOCK, PARALLEL_WORK, TILE, Schedule, Section, size_guess
from optpass.codegen.printers.base import Writer
from optpass.codegen.printers.c_like import CLikePrinter
from optpass.codegen.printers.cpp_folds import fold

#: Columns folded into one set of accumulators before those are added to doubles: bounds the rounding error of sums.
_PLAIN_RUN, _LANE_RUN = 2048, 128
#: Elements from row to row of a staged block: odd, so that a column falls into different sets of the cache.
_PITCH = TILE[0] + 1
#: Saved rows up to this many bytes live on the stack.
_STACK_BYTES = 1 << 16
#: Threads' shares of a column axis start at multiples of this many elements: whole cache lines.
_GRAIN = 64


class CppPrinter(CLikePrinter):
    """Prints one scheduled kernel as a function ``kernel_<name>(buffers…, sizes…, scalars…, status)``.

    ``*status`` becomes 1 where memory ran out and ``first_status + k`` where the kernel's k-th ``check_index`` failed.
    """

    math = "m::"

    def __init__(self, plan: Schedule, first_status: int) -> None:
        super().__init__(plan.kernel)
        self.plan, self.first_status = plan, first_status
        self.body = plan.kernel.body
        self.checks = [i for i, ins in enumerate(self.body) if isinstance(ins, Compute) and ins.op == "check_index"]
        self.folds = {i: fold(self.body[i], self) for i in self.kernel.reductions}  # type: ignore[arg-type]
        loops = plan.inner + ((plan.lane,) if plan.lane else ())
        self.depths = {a.symbol: d for d, a in enumerate(loops)}
        self.write = Writer()

    @property
    def messages(self) -> list[str]:
        """Messages of the kernel's index checks, in order."""
        return [self.body[i].attr[2] for i in self.checks]  # type: ignore[union-attr,index]

    @property
    def prototype(self) -> str:
        return f"void kernel_{self.kernel.name}({', '.join(self._parameters())})"

    def text(self) -> str:
        self.write(self.prototype)
        with self.write.block("{", "}"):
            self._shared_memory()
            if self.checks:
                self.write("uint32_t bad = 0;")
            with self._threads(), self._row_loops():
                self._row()
            if self.checks:
                self.write(f"if (bad) *status = {self.first_status} + __builtin_ctz(bad);")
        return self.write.text()

    def _parameters(self) -> Iterator[str]:
        stored = {ins.buffer for ins in self.body if isinstance(ins, Store)}
        for b in self.kernel.buffers:
            yield f"{'' if b.name in stored else 'const '}{self.memory_type(b.dtype)}* __restrict {b.name}"
        yield from (f"int64_t {s}" for s in self.kernel.sizes)
        yield from (f"{self.value_type(s.dtype)} {s.name}" for s in self.kernel.scalars)
        yield "int* status"

    # ---- memory ----

    def _saved_full(self) -> dict[int, Expr]:
        """Full-level values that a row keeps between passes, with their size in bytes."""
        lanes = LANE_BLOCK if self.plan.lane else 1
        count = sympy.Mul(lanes, *(a.size for a in self.plan.inner))
        saved = sorted(i for p in self.plan.passes for i in p.writes if self._is_full(i))
        return {i: count * self.body[i].dtype.itemsize for i in saved}  # type: ignore[union-attr]

    def _is_full(self, i: int) -> bool:
        return bool(self.kernel.axes_of[i] & {a.symbol for a in self.plan.inner})

    def _saved_lanes(self) -> list[int]:
        return sorted({i for s in self.plan.row_sections + self.plan.passes for i in s.writes if not self._is_full(i)})

    @property
    def _on_stack(self) -> bool:
        total = sympy.Add(*self._saved_full().values())
        return bool(total.is_Integer and total <= _STACK_BYTES)

    def _shared_memory(self) -> None:
        """Memory allocated once a call, before threads start."""
        threads = "omp_get_max_threads()" if self.plan.parallel else "1"
        wanted = []
        if not self._on_stack:
            each = " + ".join(f"line({self.index(size)})" for size in self._saved_full().values())
            wanted.append(("saved", each))
        if self.plan.split and self.folds:
            wanted.append(("parts", str(2 * self._slot_bytes * len(self.folds))))
        for name, size in wanted:
            self.write(f"const int64_t {name}_bytes = {size};")
            self.write(f"const Scratch {name}({threads} * {name}_bytes);")
            with self.write.block(f"if (!{name}.data) {{", "}"):
                self.write("*status = 1;")
                self.write("return;")

    @property
    def _slot_bytes(self) -> int:
        return 8 * LANE_BLOCK if self.plan.lane else 64

    def _own_memory(self) -> None:
        """Arrays of one thread."""
        start = "thread * saved_bytes"
        for i, size in self._saved_full().items():
            name = self.type(i)
            if self._on_stack:
                self.write(f"alignas(64) {name} keep{i}[{size // self.body[i].dtype.itemsize}];")  # type: ignore[union-attr]
            else:
                self.write(f"{name}* keep{i} = ({name}*)((char*)saved.data + {start});")
                start += f" + line({self.index(size)})"
        if self.plan.lane:
            for i, fold in self.folds.items():
                self.write(f"alignas(64) {fold.type} acc{i}[{LANE_BLOCK}];")
                if self._is_totalled(i):
                    self.write(f"alignas(64) {fold.total} total{i}[{LANE_BLOCK}];")
            for i in self._saved_lanes():
                self.write(f"alignas(64) {self.type(i)} keep{i}[{LANE_BLOCK}];")

    # ---- loops ----

    @contextmanager
    def _threads(self) -> Iterator[None]:
        plan, write = self.plan, self.write
        if plan.parallel:
            clauses = "" if plan.work.is_Integer else f" if ({self.index(plan.work)} >= {PARALLEL_WORK})"
            clauses += " reduction(| : bad)" if self.checks else ""
            write(f"#pragma omp parallel{clauses}")
        with write.block("{", "}"):
            if plan.split:
                write("const int thread = omp_get_thread_num(), threads = omp_get_num_threads();")
                name, size = plan.split.symbol, self.index(plan.split.size)
                write(f"const int64_t {name}_from = share<{_GRAIN}>({size}, thread, threads);")
                write(f"const int64_t {name}_to = share<{_GRAIN}>({size}, thread + 1, threads);")
                if self.folds:
                    write("int turn = 0;")
            elif not self._on_stack:
                write(f"const int thread = {'omp_get_thread_num()' if plan.parallel else 0};")
            self._own_memory()
            yield

    @contextmanager
    def _row_loops(self) -> Iterator[None]:
        plan, write = self.plan, self.write
        blocks: dict[Axis, int] = {}
        if plan.tile:
            blocks = {plan.outer[-1]: TILE[0], plan.inner[-1]: TILE[1]}
        if plan.lane:
            blocks[plan.lane] = LANE_BLOCK
        loops = [a for a in plan.outer if a not in blocks] + list(blocks)
        if loops and plan.parallel and not plan.split:
            collapse = f" collapse({len(loops)})" if len(loops) > 1 else ""
            write(f"#pragma omp for{collapse} schedule(static) nowait")
        with ExitStack() as stack:
            for axis in loops:
                name, size, step = axis.symbol.name, self.index(axis.size), blocks.get(axis)
                head = self._for(f"{name}_lo", "0", size, step) if step else self._for(name, "0", size)
                stack.enter_context(write.block(head, "}"))
            for axis, step in blocks.items():
                name = axis.symbol.name
                write(f"const int64_t {name}_hi = min_int<int64_t>({name}_lo + {step}, {self.index(axis.size)});")
            if plan.tile:
                for i in plan.staged:
                    self._stage(i)
                stack.enter_context(write.block(self._for(*self._bounds(plan.outer[-1])), "}"))
            yield
            if plan.split and self.folds and loops:
                write("turn ^= 1;")

    def _stage(self, i: int) -> None:
        """Copies a block of a buffer along the rows of memory; reading it across then stays in the nearest cache."""
        ins, across, along = self.body[i], self.plan.inner[-1], self.plan.outer[-1]
        assert isinstance(ins, Load)
        element = self.memory_type(self.kernel.buffer(ins.buffer).dtype)
        self.write(f"{element} tile{i}[{TILE[1] * _PITCH}];")
        with self.write.block(self._for(*self._bounds(across)), "}"):
            self.write("#pragma omp simd")
            with self.write.block(self._for(*self._bounds(along)), "}"):
                self.write(f"{self._tile_element(i)} = {super().element(ins)};")

    def _tile_element(self, i: int) -> str:
        across, along = self.plan.inner[-1].symbol, self.plan.outer[-1].symbol
        return f"tile{i}[({across} - {across}_lo) * {_PITCH} + {along} - {along}_lo]"

    def element(self, ins: Load) -> str:
        staged = next((i for i in self.plan.staged if self.body[i] == ins), None)
        return super().element(ins) if staged is None else self._tile_element(staged)

    @staticmethod
    def _for(name: str, low: str, high: str, step: int = 1) -> str:
        advance = f"++{name}" if step == 1 else f"{name} += {step}"
        return f"for (int64_t {name} = {low}; {name} < {high}; {advance}) {{"

    def _bounds(self, axis: Axis) -> tuple[str, str, str]:
        """Name and range of a loop of the current block."""
        name, plan = axis.symbol.name, self.plan
        if axis == plan.lane or (plan.tile and axis in (plan.outer[-1], plan.inner[-1])):
            return name, f"{name}_lo", f"{name}_hi"
        if axis == plan.split:
            return name, f"{name}_from", f"{name}_to"
        return name, "0", self.index(axis.size)

    def _row(self) -> None:
        """All sections of one row (of one block of lanes)."""
        for i in self.plan.hoisted:
            self._statement(i)
        for t, section in enumerate(self.plan.row_sections):
            self._row_section(section)
            if t < len(self.plan.passes):
                self._pass(self.plan.passes[t])

    def _row_section(self, section: Section) -> None:
        if not self.plan.lane:
            for i in section.body:
                self._statement(i)
        elif section.body:
            self._lane_loop(section, section.reads + section.body)

    def _lane_loop(self, section: Section, items: tuple[int, ...]) -> None:
        assert self.plan.lane
        self.write(self._simd(items, ()))
        with self.write.block(self._for(*self._bounds(self.plan.lane)), "}"):
            self._items(section, sorted(items), f"acc{{}}[{self._lane_index}]")

    @property
    def _lane_index(self) -> str:
        assert self.plan.lane
        return f"{self.plan.lane.symbol} - {self.plan.lane.symbol}_lo"

    def _simd(self, items: tuple[int, ...], folds: tuple[int, ...]) -> str:
        clauses = "".join(f" reduction({self.folds[f].clause} : acc{f})" for f in folds)
        if any(i in self.checks for i in items):
            clauses += " reduction(| : bad)"
        return f"#pragma omp simd{clauses}"

    def _pass(self, section: Section) -> None:
        if self.plan.lane:
            self._lane_pass(section)
        else:
            self._plain_pass(section)

    # ---- the plain shape ----

    def _plain_pass(self, section: Section) -> None:
        last = self.plan.inner[-1]
        nested = len(self.plan.inner) > 1 or not sympy.sympify(last.size).is_Integer or last.size > _PLAIN_RUN
        nested = nested and bool(section.folds)
        outer = "total" if nested else "acc"
        for f in section.folds if nested else ():
            self.write(f"{self.folds[f].total} total{f} = {self.folds[f].start};")
        self._columns(section, 0, nested)
        for f in section.folds:
            if self.plan.split:
                self._publish(f, "", f"{outer}{f}")
        if self.plan.split and section.folds:
            self.write("#pragma omp barrier")
        for f in section.folds:
            fold, name = self.folds[f], f"{outer}{f}"
            if self.plan.split:
                name = f"all{f}"
                self.write(f"{fold.total} {name} = {fold.start};")
                with self.write.block("for (int k = 0; k < threads; ++k) {", "}"):
                    self.write(fold.combine(name, f"*{self._slot(f, 'k')}"))
            self.write(f"const {self.type(f)} v{f} = {self._folded(f, name)};")

    def _folded(self, f: int, accumulator: str) -> str:
        return f"{accumulator} != 0" if self.type(f) == "bool" else f"({self.type(f)}){accumulator}"

    def _slot(self, f: int, thread: str) -> str:
        """Where a thread leaves its part of a reduction. Rows use two sets of slots by turns: one barrier is enough."""
        offset = list(self.folds).index(f) * self._slot_bytes
        return f"slot<{self.folds[f].total}>(parts, turn * threads + {thread}, parts_bytes / 2, {offset})"

    def _publish(self, f: int, index: str, value: str) -> None:
        self.write(f"{self._slot(f, 'thread')}[{index or 0}] = {value};")

    def _columns(self, section: Section, depth: int, nested: bool) -> None:
        axis = self.plan.inner[depth]
        items = self._at_depth(section, depth)
        if depth < len(self.plan.inner) - 1:
            with self.write.block(self._for(*self._bounds(axis)), "}"):
                self._items(section, items)
                self._columns(section, depth + 1, nested)
            return
        name, low, high = self._bounds(axis)
        with ExitStack() as stack:
            if nested and not (sympy.sympify(axis.size).is_Integer and axis.size <= _PLAIN_RUN):
                stack.enter_context(self.write.block(self._for(f"{name}_run", low, high, _PLAIN_RUN), "}"))
                self.write(f"const int64_t {name}_end = min_int<int64_t>({name}_run + {_PLAIN_RUN}, {high});")
                low, high = f"{name}_run", f"{name}_end"
            lanes = self._lanes(section, items)
            if lanes:
                self._wide_loop(section, items, (name, low, high), lanes)
            else:
                self._simple_loop(section, items, (name, low, high))
            for f in section.folds if nested else ():
                self.write(self.folds[f].combine(f"total{f}", f"acc{f}"))

    def _simple_loop(self, section: Section, items: list[int], bounds: tuple[str, str, str]) -> None:
        for f in section.folds:
            self.write(f"{self.folds[f].type} acc{f} = {self.folds[f].start};")
        self.write(self._simd(tuple(items), section.folds))
        with self.write.block(self._for(*bounds), "}"):
            self._items(section, items)

    def _wide_loop(self, section: Section, items: list[int], bounds: tuple[str, str, str], lanes: int) -> None:
        name, low, high = bounds
        for f in section.folds:
            fold = self.folds[f]
            self.write(f"alignas(64) {fold.type} lanes{f}[{lanes}];")
            self.write(f"fill<{lanes}, {fold.type}>(lanes{f}, {fold.start});")
        with self.write.block(f"each_lane<{lanes}>({low}, {high}, [&](int64_t {name}, int l) STEP {{", "});"):
            self._items(section, items, "lanes{}[l]")
        for f in section.folds:
            combine = self.folds[f].combine("a", "b")
            name = self.folds[f].type
            self.write(f"const {name} acc{f} = fold_lanes<{lanes}>(lanes{f}, []({name}& a, {name} b) {{ {combine} }});")

    def _lanes(self, section: Section, items: list[int]) -> int:
        """Accumulators of each fold in the innermost loop; 0 for the compiler's choice."""
        if not section.folds or any(i in self.checks for i in items):
            return 0
        lanes = self.plan.lanes // (2 if len(section.folds) > 2 else 1)
        size = sympy.sympify(self.plan.inner[-1].size)
        if size.is_Integer:
            lanes = min(lanes, 1 << int(size).bit_length() >> 1)
        return lanes if lanes >= 8 else 0

    def _at_depth(self, section: Section, depth: int) -> list[int]:
        """What a pass evaluates in the loop at ``depth`` and no deeper."""
        deepest = len(self.depths) - 1

        def level(i: int) -> int:
            if isinstance(self.body[i], Reduce) and i in section.body:
                return deepest
            if self._varies_in_lane(i):
                return deepest
            return max((self.depths[s] for s in self.kernel.axes_of[i] if s in self.depths), default=deepest)

        return [i for i in sorted(section.reads + section.body) if level(i) == depth]

    def _varies_in_lane(self, i: int) -> bool:
        """Whether a value differs between the lanes of a block; accumulators always count as such."""
        if not self.plan.lane:
            return False
        depends = lambda k: isinstance(self.body[k], Reduce) or any(map(depends, arguments(self.body[k])))
        return self.plan.lane.symbol in self.kernel.axes_of[i] or depends(i)

    # ---- the lane shape ----

    def _is_totalled(self, f: int) -> bool:
        """Whether lanes move their float sums to doubles every so many columns."""
        sizes = [sympy.sympify(a.size) for a in self.plan.inner]
        long = not all(s.is_Integer for s in sizes) or size_guess(*self.plan.inner) > 2 * _LANE_RUN
        return self.folds[f].total != self.folds[f].type and long

    def _lane_pass(self, section: Section) -> None:
        self._each_lane([f"acc{f}[l] = {self.folds[f].start};" for f in section.folds])
        totalled = [f for f in section.folds if self._is_totalled(f)]
        self._each_lane([f"total{f}[l] = {self.folds[f].start};" for f in totalled])
        self._lane_columns(section, 0, totalled)
        if not (self.plan.split and section.folds):
            self._each_lane([f"acc{f}[l] = ({self.folds[f].type})total{f}[l];" for f in totalled])
            return
        for f in section.folds:
            self._each_lane([f"{self._slot(f, 'thread')}[l] = {'total' if f in totalled else 'acc'}{f}[l];"])
        self.write("#pragma omp barrier")
        for f in section.folds:
            name = f"total{f}" if f in totalled else f"acc{f}"
            self._each_lane([f"{name}[l] = {self.folds[f].start};"])
            with self.write.block("for (int k = 0; k < threads; ++k) {", "}"):
                self.write(f"const {self.folds[f].total}* part = {self._slot(f, 'k')};")
                self._each_lane([self.folds[f].combine(f"{name}[l]", "part[l]")])
        self._each_lane([f"acc{f}[l] = ({self.folds[f].type})total{f}[l];" for f in totalled])

    def _each_lane(self, statements: list[str]) -> None:
        if statements:
            assert self.plan.lane
            name = self.plan.lane.symbol.name
            self.write("#pragma omp simd")
            with self.write.block(self._for("l", "0", f"{name}_hi - {name}_lo"), "}"):
                for s in statements:
                    self.write(s)

    def _lane_columns(self, section: Section, depth: int, totalled: list[int]) -> None:
        if depth == len(self.plan.inner):
            self._lane_loop(section, tuple(self._at_depth(section, depth)))
            return
        axis = self.plan.inner[depth]
        name, low, high = self._bounds(axis)
        with ExitStack() as stack:
            flush = totalled and axis == max(self.plan.inner, key=size_guess)
            if flush:
                run = max(1, _LANE_RUN // size_guess(*self.plan.inner[depth + 1 :]))
                stack.enter_context(self.write.block(self._for(f"{name}_run", low, high, run), "}"))
                self.write(f"const int64_t {name}_end = min_int<int64_t>({name}_run + {run}, {high});")
                low, high = f"{name}_run", f"{name}_end"
            with self.write.block(self._for(name, low, high), "}"):
                self._items(section, self._at_depth(section, depth))
                self._lane_columns(section, depth + 1, totalled)
            if flush:
                self._each_lane([s for f in totalled for s in self._flush(f)])

    def _flush(self, f: int) -> list[str]:
        fold = self.folds[f]
        return [fold.combine(f"total{f}[l]", f"acc{f}[l]"), f"acc{f}[l] = {fold.start};"]

    # ---- statements ----

    def _items(self, section: Section, items: list[int], accumulator: str = "acc{}") -> None:
        for i in items:
            if i in section.reads:
                self.write(f"const {self.type(i)} v{i} = {self._stored_at(i)};")
                continue
            self._statement(i, accumulator)
            if i in section.writes:
                self.write(f"{self._stored_at(i)} = v{i};")

    def _stored_at(self, i: int) -> str:
        lane = self._lane_index if self._varies_in_lane(i) else ""
        if isinstance(self.body[i], Reduce):
            return self._folded(i, f"acc{i}[{lane}]")
        if not self._is_full(i):
            return f"keep{i}[{lane}]"
        position = sympy.S.Zero
        for a in self.plan.inner:
            position = position * a.size + a.symbol
        text = self.index(sympy.expand(position * (LANE_BLOCK if lane else 1)))
        return f"keep{i}[{text} + {lane}]" if lane else f"keep{i}[{text}]"

    def _statement(self, i: int, accumulator: str = "acc{}") -> None:
        ins = self.body[i]
        match ins:
            case Const() | Scalar():
                pass
            case Store(buffer, index, value):
                have, want = self.body[value].dtype, self.kernel.buffer(buffer).dtype  # type: ignore[union-attr]
                text = f"{buffer}[{self.index(index)}] = {self.stored(self.ref(value), have, want)};"
                conditions = self._guards(index)
                if self.plan.split and not self._is_full(i) and self.kernel.cols:
                    conditions = ["thread == 0", *conditions]
                self.write(f"if ({' && '.join(conditions)}) {text}" if conditions else text)
            case Reduce(arg=arg, dtype=dtype):
                have = self.body[arg].dtype  # type: ignore[union-attr]
                self.write(self.folds[i].combine(accumulator.format(i), self.cast(self.ref(arg), have, dtype)))
            case Load(mask=mask, index=index, other=other, dtype=dtype) if guards := self._guards(index):
                conditions = guards if mask is None else [self.ref(mask), *guards]
                text = f"{' & '.join(conditions)} ? {self.load(ins)} : {self.literal(other, dtype)}"
                self.write(f"const {self.type(i)} v{i} = {text};")
            case Compute(op="check_index"):
                self._check(i, ins)
            case Compute("exp", (x,), torch.float32) if self._is_below_maximum(x):
                self.write(f"const {self.type(i)} v{i} = m::exp_bounded({self.ref(x)});")
            case _:
                self.write(f"const {self.type(i)} v{i} = {self.expression(ins)};")

    def _check(self, i: int, ins: Compute) -> None:
        size, wrap, _ = ins.attr  # type: ignore[misc]
        given, limit = self.ref(ins.args[0]), self.indices.atom(size)
        wrapped = f"{given} < 0 ? ({self.type(i)})({given} + {limit}) : {given}" if wrap else given
        self.write(f"const {self.type(i)} v{i} = {wrapped};")
        self.write(f"const bool ok{i} = (v{i} >= 0) & (v{i} < {limit});")
        # A mask has 32 bits; later checks share the last one.
        self.write(f"bad |= ok{i} ? 0u : 1u << {min(self.checks.index(i), 31)};")

    def _is_below_maximum(self, i: int) -> bool:
        """Whether a value is a difference from the maximum over itself."""
        match self.body[i]:
            case Compute("sub", (a, b)):
                return isinstance(self.body[b], Reduce) and (self.body[b].op, self.body[b].arg) == ("max", a)  # type: ignore[union-attr]
        return False

    def _guards(self, index: Expr) -> list[str]:
        """Conditions under which an index made from checked values may be used."""
        found: set[int] = set()

        def visit(k: int) -> None:
            if k in self.checks:
                found.add(k)
            for a in arguments(self.body[k]):
                visit(a)

        for k in indirect(index):
            visit(k)
        return [f"ok{k}" for k in sorted(found)]
