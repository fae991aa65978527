"""The schedule of a kernel for C-like targets: which loops, in which order, with what kept between passes.

A kernel becomes *sections*: row sections (once a row) alternate with passes (a loop over the columns that folds one or
more reductions or stores). A full-level value that a later pass needs again is computed again from its loads where that
is cheap, or saved to a row buffer where it is not. There are two shapes:

* *plain*: the vectorised loop runs over a column axis (of a pointwise kernel: over one of its row axes), row-level
  values are scalars;
* *lanes*: the vectorised loop runs over a row axis, innermost, with the columns outside of it; row-level values are
  arrays over a block of that axis. This suits reductions over an outer axis in memory, and many short rows.

Threads share out the rows, or, where rows are few, the range of one column axis; then each thread folds its part and
all combine the parts in the same order, so that a result depends on the number of threads but not on their timing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import sympy
import torch

from optpass.codegen.axes import normalise, strides
from optpass.codegen.expr import Expr, Symbol
from optpass.codegen.ir import (
    Axis,
    Compute,
    Const,
    Index,
    Instruction,
    Kernel,
    Load,
    Part,
    Reduce,
    Scalar,
    Store,
    arguments,
    indirect,
    renumber,
)
from optpass.codegen.target import Target
from optpass.errors import UnsupportedOp

#: Rough cost of an operation in units of one vector instruction; 1 where nothing else is said.
_COST = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "erf", "rand"), 16),
    **dict.fromkeys(("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "pow"), 32),
    **dict.fromkeys(("atan2", "fmod"), 32),
    **dict.fromkeys(("idiv", "imod", "tdiv"), 16),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "round"), 3),
}
#: A value that costs more than this to compute again is saved between passes.
_CHEAP = 8
#: Least work, in vector instructions times elements, that is worth waking threads for.
PARALLEL_WORK = 1 << 17
#: Elements of one vector, for rough costs.
_VECTOR = 16
#: What an unknown size is taken for.
_LARGE = 4096
#: Iterations of the lane axis that share one set of arrays.
LANE_BLOCK = 256
#: Block of a transposing loop nest: (axis contiguous in the reads, axis contiguous in the writes).
TILE = (32, 64)


@dataclass(frozen=True, slots=True)
class Section:
    """Instructions evaluated together: ``reads`` come back from storage, ``body`` (in order) is computed, of which
    ``writes`` go to storage; ``folds`` are the reductions accumulated (passes only)."""

    body: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    folds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """How to run ``kernel`` (the given one after rewrites).

    Attributes:
        outer: row loops, outermost first, without the lane axis.
        lane: the row axis that is vectorised, or None for the plain shape.
        inner: column loops, outermost first; without a lane axis the last is vectorised.
        split: the column axis whose range threads share out, or None where they share out the outer loops.
        tile: in a transposing nest, the last axis of ``outer`` and the one of ``inner`` run in blocks.
        staged: loads that a block copies first, in the order of memory, and reads back across.
        row_sections, passes: executed alternately, starting with a row section; one more of the former.
        hoisted: row-level values that do not vary along the lane axis, computed in the outer loops.
        work: cost of one element times the number of elements.
        lanes: accumulators that a fold of float32 values keeps in the plain shape: four vectors.
    """

    kernel: Kernel
    outer: tuple[Axis, ...]
    lane: Axis | None
    inner: tuple[Axis, ...]
    split: Axis | None
    tile: bool
    staged: tuple[int, ...]
    row_sections: tuple[Section, ...]
    passes: tuple[Section, ...]
    hoisted: tuple[int, ...]
    work: Expr
    lanes: int

    @property
    def parallel(self) -> bool:
        """Whether threads may be worth their cost; the printer asks again at run time where sizes are symbolic."""
        return not (self.work.is_Integer and self.work < PARALLEL_WORK)


def schedule(kernel: Kernel, target: Target) -> Schedule:
    """Chooses loops for a kernel.

    Raises:
        UnsupportedOp: the body reads a buffer that it also writes, in a way that no loop order keeps right.
    """
    kernel = normalise(expand_reductions(kernel))
    _check_in_place(kernel)
    if not kernel.reductions:
        kernel = replace(kernel, rows=kernel.rows + kernel.cols, cols=())
    outer, lane, inner, tile = _loop_order(kernel)
    work = sympy.Mul(sum(map(op_cost, kernel.body)), *(a.size for a in kernel.rows + kernel.cols))
    split = None if tile else _split_axis(outer, lane, inner, work, target)
    return _Sections(kernel, outer, lane, inner, split, target).schedule(tile, work)


def expand_reductions(kernel: Kernel) -> Kernel:
    """Writes ``welford`` as two sums and ``argmax``/``argmin`` as an extremum and the least position that holds it."""
    if not any(isinstance(i, Reduce) and i.op in ("welford", "argmax", "argmin") for i in kernel.body):
        return kernel
    body: list[Instruction] = []
    new: dict[int, int] = {}
    pairs: dict[int, tuple[int, int]] = {}

    def emit(ins: Instruction) -> int:
        body.append(ins)
        return len(body) - 1

    for old, ins in enumerate(kernel.body):
        match ins:
            case Reduce("welford", arg, dtype):
                pairs[old] = _welford(kernel, emit, new[arg], dtype)
            case Part(arg, number, _):
                new[old] = pairs[arg][number]
            case Reduce("argmax" | "argmin" as op, arg, _):
                new[old] = _first_extremum(kernel, emit, op.removeprefix("arg"), new[arg], kernel.body[arg].dtype)  # type: ignore[union-attr]
            case _:
                new[old] = emit(renumber(ins, new))
    return replace(kernel, body=tuple(body), origins=())


def _welford(kernel: Kernel, emit, value: int, dtype: torch.dtype) -> tuple[int, int]:
    count = emit(Index(sympy.Mul(*(a.size for a in kernel.cols))))
    total = emit(Reduce("sum", value, dtype))
    mean = emit(Compute("div", (total, emit(Compute("cast", (count,), dtype))), dtype))
    deviation = emit(Compute("sub", (value, mean), dtype))
    return mean, emit(Reduce("sum", emit(Compute("mul", (deviation, deviation), dtype)), dtype))


def _first_extremum(kernel: Kernel, emit, op: str, value: int, dtype: torch.dtype) -> int:
    best = emit(Reduce(op, value, dtype))
    here = emit(Compute("eq", (value, best), torch.bool))
    if dtype.is_floating_point:
        here = emit(Compute("or", (here, emit(Compute("isnan", (value,), torch.bool))), torch.bool))
    position = sympy.S.Zero
    for a in kernel.cols:
        position = position * a.size + a.symbol
    never = emit(Const(torch.iinfo(torch.int64).max, torch.int64))
    place = emit(Compute("where", (here, emit(Index(sympy.expand(position))), never), torch.int64))
    return emit(Reduce("min", place, torch.int64))


def size_guess(*axes: Axis) -> int:
    """Number of iterations, with a guess for unknown sizes."""
    out = 1
    for a in axes:
        size = sympy.sympify(a.size)
        out *= int(size) if size.is_Integer else _LARGE
    return out


def op_cost(ins: Instruction) -> int:
    """Rough cost of one instruction, in vector instructions."""
    if isinstance(ins, Compute):
        return _COST.get(ins.op, 1)
    return 0 if isinstance(ins, Const | Scalar) else 1


def _check_in_place(kernel: Kernel) -> None:
    """A buffer both read and written is fine where each element is read before that same element is written."""
    for i, store in enumerate(kernel.body):
        for k, load in enumerate(kernel.body):
            if isinstance(store, Store) and isinstance(load, Load) and load.buffer == store.buffer:
                if k < i and load.index == store.index:
                    continue
                raise UnsupportedOp(f"kernel {kernel.name} reads {store.buffer} where it may be written already")


# ---- loop order ----


def _loop_order(kernel: Kernel) -> tuple[tuple[Axis, ...], Axis | None, tuple[Axis, ...], bool]:
    """The outer loops, the lane axis, the inner loops, and whether to run the nest in blocks."""
    access = _access(kernel)
    best = min(reversed(kernel.rows + kernel.cols), key=lambda a: _vector_cost(kernel, access, a), default=None)
    without = lambda axes: tuple(a for a in axes if a is not best)
    if best is None:
        return kernel.rows, None, kernel.cols, False
    if kernel.cols and best in kernel.rows:
        return without(kernel.rows), best, kernel.cols, False
    if kernel.cols:
        return kernel.rows, None, (*without(kernel.cols), best), False
    # Writing in the order of memory matters more than reading so.
    outer = tuple(sorted(without(kernel.rows), key=lambda a: -_store_stride(kernel, access, a)))
    other = _transposed(access, outer, best)
    if other is None:
        return outer, None, (best,), False
    return (*(a for a in outer if a is not other), other), None, (best,), True


def _access(kernel: Kernel) -> dict[int, dict[Symbol, Expr | None]]:
    """For each load and store its stride along each axis; None where the index is not linear in the axis."""
    symbols = tuple(a.symbol for a in kernel.rows + kernel.cols)
    out: dict[int, dict[Symbol, Expr | None]] = {}
    for i, ins in enumerate(kernel.body):
        if isinstance(ins, Load | Store):
            out[i] = strides(ins.index, symbols)
            for v in indirect(ins.index):
                out[i] |= dict.fromkeys(kernel.axes_of[v])
    return out


def _vector_cost(kernel: Kernel, access: dict[int, dict[Symbol, Expr | None]], axis: Axis) -> float:
    """Cost of an element where ``axis`` is the vectorised one."""
    size = size_guess(axis)
    if size == 0:
        return inf
    short_rows = size_guess(*kernel.cols) < _VECTOR
    total = 0.25 * sum(isinstance(i, Compute) for i in kernel.body)
    for i, by in access.items():
        if not kernel.cols or kernel.is_full[i] or short_rows:
            weight = 2 if isinstance(kernel.body[i], Store) else 1
            total += weight * _access_cost(by.get(axis.symbol, sympy.S.Zero))
    occupied = size / (-(-size // _VECTOR) * _VECTOR)
    # Starting the loop, and folding the accumulators of a vector into one, cost so many elements each.
    folds = len(kernel.reductions) if axis in kernel.cols else 0
    return total / occupied + (8 + 30 * folds) / size


def _access_cost(stride: Expr | None) -> float:
    if stride is None:
        return 6
    return 0.1 if stride == 0 else 1 if stride == 1 else 2 if stride == -1 else 4


def _store_stride(kernel: Kernel, access: dict[int, dict[Symbol, Expr | None]], axis: Axis) -> int:
    """The widest step along an axis in memory written, with a guess for unknown sizes."""
    strides = [by.get(axis.symbol) or sympy.S.Zero for i, by in access.items() if isinstance(kernel.body[i], Store)]
    return max(int(s.subs(dict.fromkeys(s.free_symbols, _LARGE))) for s in strides)


def _transposed(access: dict[int, dict[Symbol, Expr | None]], outer: tuple[Axis, ...], vector: Axis) -> Axis | None:
    """A long row axis along which some access is contiguous that strides along the vectorised axis."""
    for axis in outer:
        for by in access.values():
            if by.get(axis.symbol) == 1 and by.get(vector.symbol) and min(map(size_guess, (axis, vector))) >= _VECTOR:
                return axis
    return None


def _split_axis(
    outer: tuple[Axis, ...], lane: Axis | None, inner: tuple[Axis, ...], work: Expr, target: Target
) -> Axis | None:
    if not inner or (work.is_Integer and work < PARALLEL_WORK):
        return None
    tasks = size_guess(*outer) * (-(-size_guess(lane) // LANE_BLOCK) if lane else 1)
    if tasks == 1 or (tasks < 4 * target.units and size_guess(*inner) >= 2 * _LARGE):
        return max(inner, key=size_guess)
    return None


# ---- sections ----


class _Sections:
    """Assigns instructions to row sections and passes."""

    def __init__(
        self,
        kernel: Kernel,
        outer: tuple[Axis, ...],
        lane: Axis | None,
        inner: tuple[Axis, ...],
        split: Axis | None,
        target: Target,
    ) -> None:
        self.kernel, self.body = kernel, kernel.body
        self.outer, self.lane, self.inner, self.split, self.target = outer, lane, inner, split, target
        loops = {a.symbol for a in inner}
        self.full = [
            bool(axes & loops) or (bool(loops) and not kernel.cols and isinstance(ins, Store))
            for ins, axes in zip(self.body, kernel.axes_of)
        ]
        self.folded = self._folded()
        self.stage = self._stages()
        self.varies = [
            folded or (lane is not None and lane.symbol in axes) for folded, axes in zip(self.folded, kernel.axes_of)
        ]
        self.indices = range(len(self.body))
        self.pinned = self._pinned()
        self.first: dict[int, int] = {}
        self.saved: set[int] = set()
        self.saved_bytes = 0

    def _folded(self) -> list[bool]:
        """Whether a value depends on a reduction (or is one)."""
        out: list[bool] = []
        for ins in self.body:
            out.append(isinstance(ins, Reduce) or any(out[a] for a in arguments(ins)))
        return out

    def _stages(self) -> list[int]:
        """For each instruction the number of passes that are over before it runs (for a reduction: before its own)."""
        out: list[int] = []
        for ins in self.body:
            out.append(max((out[a] + isinstance(self.body[a], Reduce) for a in arguments(ins)), default=0))
        roots = [out[i] for i in range(len(self.body)) if self._is_pass_root(i)]
        self.pass_count = max(roots, default=-1) + 1
        read = {ins.buffer for ins in self.body if isinstance(ins, Load)}
        for i, ins in enumerate(self.body):
            # What is read again in a later pass must still be there.
            if isinstance(ins, Store) and ins.buffer in read:
                out[i] = self.pass_count - self.full[i]
        return out

    def schedule(self, tile: bool, work: Expr) -> Schedule:
        sections: list[tuple[list[int], list[int]]] = []
        for t in range(2 * self.pass_count + 1):
            sections.append(self._section(t, self._pass_roots(t // 2) if t % 2 else self._row_roots(t // 2)))
        built = [
            Section(
                tuple(body),
                tuple(reads),
                tuple(i for i in body if i in self.saved and self.first[i] == t),
                tuple(i for i in body if isinstance(self.body[i], Reduce)),
            )
            for t, (body, reads) in enumerate(sections)
        ]
        hoisted = [i for i in self.indices if self._is_row_value(i) and not self.varies[i]] if self.lane else []
        return Schedule(
            self.kernel, self.outer, self.lane, self.inner, self.split, tile, self._staged() if tile else (),
            tuple(built[::2]), tuple(built[1::2]), tuple(hoisted), work, self.target.vector_bytes,
        )  # fmt: skip

    def _staged(self) -> tuple[int, ...]:
        """Loads of a block that are contiguous along its outer axis and stride along the vectorised one."""
        across, along = self.inner[-1].symbol, self.outer[-1].symbol
        stored = {ins.buffer for ins in self.body if isinstance(ins, Store)}
        plain = lambda ins: isinstance(ins, Load) and ins.mask is None and not indirect(ins.index)
        return tuple(
            i
            for i, by in _access(self.kernel).items()
            if plain(self.body[i]) and self.body[i].buffer not in stored and by.get(along) == 1 and by.get(across)  # type: ignore[union-attr]
        )

    def _is_row_value(self, i: int) -> bool:
        return not self.full[i] and not isinstance(self.body[i], Reduce | Store)

    def _is_pass_root(self, i: int) -> bool:
        return isinstance(self.body[i], Reduce) or (isinstance(self.body[i], Store) and self.full[i])

    def _pass_roots(self, t: int) -> list[int]:
        return [i for i in self.indices if self.stage[i] == t and self._is_pass_root(i)]

    def _row_roots(self, t: int) -> list[int]:
        """Stores, and the values that are worth computing once a row rather than where they are used."""
        here = [i for i in self.indices if self.stage[i] == t and not self.full[i] and not self._is_pass_root(i)]
        if not self.lane:
            return here
        return [i for i in here if isinstance(self.body[i], Store) or (self.varies[i] and not self._again(i))]

    def _section(self, t: int, roots: list[int]) -> tuple[list[int], list[int]]:
        """What section ``t`` computes, in order, and what it reads back from storage."""
        body: set[int] = set()
        reads: set[int] = set()

        def visit(i: int) -> None:
            if i in body or i in reads or self._in_scope(i, t):
                return
            if self._comes_back(i, t):
                reads.add(i)
                return
            body.add(i)
            for a in arguments(self.body[i]):
                visit(a)

        for i in roots:
            visit(i)
        for i in body:
            self.first.setdefault(i, t)
        return sorted(body), sorted(reads)

    def _in_scope(self, i: int, t: int) -> bool:
        """Whether a scalar of the enclosing block holds the value already."""
        if self.full[i] or isinstance(self.body[i], Store):
            return False
        if isinstance(self.body[i], Reduce):
            return not self.lane and 2 * self.stage[i] + 1 < t
        return not self.varies[i] if self.lane else 2 * self.stage[i] < t

    def _comes_back(self, i: int, t: int) -> bool:
        """Whether section ``t`` reads a value from storage, which then gets saved where it is first computed."""
        if isinstance(self.body[i], Reduce):
            return 2 * self.stage[i] + 1 < t
        if self.first.get(i, t) == t or self._again(i) or (i not in self.saved and not self._fits(i)):
            return False
        self.saved.add(i)
        return True

    def _pinned(self) -> set[int]:
        """Full-level values compared with a reduction, such as ``x == max(x)``, whose two computations could differ in
        the last place: vector functions round otherwise than the scalar ones that finish a loop."""
        return {
            a
            for ins in self.body
            if isinstance(ins, Compute) and ins.op in ("eq", "ne", "lt", "le", "gt", "ge")
            for a, other in (ins.args, ins.args[::-1])
            if self.full[a] and self.folded[other] and self._cost_again(a) > _CHEAP
        }

    def _cost_again(self, i: int) -> int:
        """Cost of computing a value again from its loads and reductions."""
        seen: set[int] = set()

        def visit(k: int) -> int:
            if k in seen or isinstance(self.body[k], Reduce) or self.full[k] != self.full[i]:
                return 0
            seen.add(k)
            return op_cost(self.body[k]) + sum(map(visit, arguments(self.body[k])))

        return visit(i)

    def _again(self, i: int) -> bool:
        """Whether a value is as well computed again as kept."""
        if isinstance(self.body[i], Load) and self.kernel.buffer(self.body[i].buffer).written:
            return self.full[i]
        return self._cost_again(i) <= _CHEAP and (self.full[i] or not self.folded[i])

    def _fits(self, i: int) -> bool:
        """Whether a full-level value may be saved for all columns of a row (of a lane block)."""
        if not self.full[i] or i in self.pinned:
            return True
        if self.split or (self.lane and any(not sympy.sympify(a.size).is_Integer for a in self.inner)):
            return False
        lanes = LANE_BLOCK if self.lane else 1
        self.saved_bytes += size_guess(*self.inner) * lanes * self.body[i].dtype.itemsize  # type: ignore[union-attr]
        return self.saved_bytes <= self.target.row_bytes // 2
