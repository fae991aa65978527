"""Tiles: how one GPU program covers a kernel's iteration space.

`arrange` orders and merges a kernel's axes, `tile` chooses block sizes for an arranged kernel. Block sizes are powers
of two; what a block holds beyond the axes' end is masked. The choice here is static and deterministic; a tuner
replaces fields of the `Tile` it gives.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import sympy

from optpass.codegen.expr import Expr, Symbol, coefficients, is_value
from optpass.codegen.ir import Axis, Compute, Const, Kernel, Load, Part, Reduce, Store, arguments
from optpass.codegen.simplify import expressions, merge_axes
from optpass.codegen.target import Target

#: Elements that one thread should hold: 16 bytes of the narrow dtypes, two 16-byte vectors of float32.
PER_THREAD = 8
#: Elements of the block of a pointwise kernel, and of a step of a long row.
POINTWISE_BLOCK, STEP_BLOCK = 1024, 2048
#: Longest axis assumed where a size is only known at run time.
UNKNOWN_SIZE = 8192
#: Indices below it fit 32 bits even with a block's overhang.
INT32_LIMIT = 2**31 - 2**20


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of the iteration space that one program computes, and how.

    Attributes:
        outer: row axes of which a program has one index each.
        y: row axes that block dimension ``y`` walks (linearised, row-major); none where blocks have one dimension.
        x: axes that block dimension ``x`` walks: the column axes of a reduction, else the innermost row axes.
        y_block, x_block: elements of a block along each dimension; powers of two.
        looped: whether the program steps over the columns; else one block holds whole rows.
        num_warps: warps of a program; a power of two.
        index_bits: 32, or 64 where an index may exceed 2³¹.
    """

    outer: tuple[Axis, ...] = ()
    y: tuple[Axis, ...] = ()
    x: tuple[Axis, ...] = ()
    y_block: int = 1
    x_block: int = 1
    looped: bool = False
    num_warps: int = 4
    index_bits: int = 32


def arrange(kernel: Kernel) -> Kernel:
    """The same kernel with axes ordered as memory is laid out, and merged where all accesses allow it."""
    rows = _ordered(kernel, kernel.rows, Store)
    is_ordered = any(isinstance(i, Reduce) and i.op.startswith("arg") for i in kernel.body)
    cols = kernel.cols if is_ordered else _ordered(kernel, kernel.cols, Load)
    return _without_unit_reductions(merge_axes(replace(kernel, rows=rows, cols=cols)))


def tile(kernel: Kernel, target: Target) -> Tile:
    """The default tile of an arranged kernel."""
    lanes = 64 if target.arch.startswith("gfx") else 32
    if not kernel.rows and not kernel.cols:
        return Tile(num_warps=1)
    if not kernel.cols:
        choice = _pointwise_tile(kernel, target)
    elif _streams_along_rows(kernel):
        choice = _column_reduction_tile(kernel, target)
    else:
        choice = _row_reduction_tile(kernel, target)
    elements = choice.x_block * choice.y_block
    warps = _clamp(elements // (lanes * PER_THREAD), 1, min(16, target.max_threads // lanes))
    return replace(choice, num_warps=warps, index_bits=index_bits(kernel))


def _without_unit_reductions(kernel: Kernel) -> Kernel:
    """Where no column axis is left each reduction folds one value: it becomes that value."""
    if kernel.cols:
        return kernel
    body = list(kernel.body)
    for k, ins in enumerate(body):
        if isinstance(ins, Reduce) and ins.op.startswith("arg"):
            body[k] = Const(0, ins.dtype)
        elif isinstance(ins, Reduce):
            body[k] = Compute("cast", (ins.arg,), ins.dtype)
        elif isinstance(ins, Part):
            # The value is its own mean; its deviation from that is 0, or NaN where the value is not finite.
            op, args = ("sub", (ins.arg, ins.arg)) if ins.field else ("cast", (ins.arg,))
            body[k] = Compute(op, args, ins.dtype)
    return replace(kernel, body=tuple(body))


def numel(axes: tuple[Axis, ...]) -> Expr:
    return sympy.Mul(*(sympy.sympify(a.size) for a in axes))


def _pointwise_tile(kernel: Kernel, target: Target) -> Tile:
    rows, inner = kernel.rows, kernel.rows[-1]
    streams = _unit_stride_bytes(kernel)
    across = max((a for a in rows[:-1]), key=lambda a: streams[a.symbol], default=None)
    if across is not None and 8 * streams[across.symbol] >= sum(streams.values()):
        side = 64 if _widest(kernel) <= 2 else 32
        outer = tuple(a for a in rows[:-1] if a is not across)
        return Tile(outer, (across,), (inner,), min(side, _block(across.size)), min(side, _block(inner.size)))
    block = POINTWISE_BLOCK
    while block > 128 and 2 * target.units * block > _hint(numel(rows)):
        block //= 2
    if len(rows) == 1 or not sympy.sympify(inner.size).is_Integer:
        return Tile(x=rows, x_block=min(block, _block(numel(rows))))
    x_block = min(block, _block(inner.size))
    covered = -(-int(inner.size) // x_block) * x_block
    if covered > 1.25 * inner.size:
        return Tile(x=rows, x_block=min(block, _block(numel(rows))))
    y_block = min(block // x_block, _block(numel(rows[:-1])))
    if y_block == 1:
        return Tile(outer=rows[:-1], x=(inner,), x_block=x_block)
    return Tile(y=rows[:-1], x=(inner,), y_block=y_block, x_block=x_block)


def _row_reduction_tile(kernel: Kernel, target: Target) -> Tile:
    """Whole rows in registers where they fit, several short ones at a time; else one row in steps."""
    width, live = numel(kernel.cols), _peak_live(kernel)
    fits = width.is_Integer and 4 * live * _block(width) <= target.row_bytes
    if not fits:
        return Tile(outer=kernel.rows, x=kernel.cols, x_block=min(STEP_BLOCK, _block(width)), looped=True)
    x_block = _block(width)
    y_block = 1
    while 2 * y_block * x_block <= POINTWISE_BLOCK and 4 * y_block * target.units <= _hint(numel(kernel.rows)):
        y_block *= 2
    if y_block == 1:
        return Tile(outer=kernel.rows, x=kernel.cols, x_block=x_block)
    return Tile(y=kernel.rows, x=kernel.cols, y_block=y_block, x_block=x_block)


def _column_reduction_tile(kernel: Kernel, target: Target) -> Tile:
    """A block of neighbouring rows, over columns that are far apart in memory."""
    streams = _unit_stride_bytes(kernel)
    across = max(kernel.rows, key=lambda a: streams[a.symbol])
    outer = tuple(a for a in kernel.rows if a is not across)
    y_block = min(64 if _widest(kernel) <= 2 else 32, _block(across.size))
    while y_block > 16 and y_block * target.units > _hint(numel(kernel.rows)):
        y_block //= 2
    width = numel(kernel.cols)
    x_block = min(STEP_BLOCK // y_block, _block(width))
    looped = not width.is_Integer or x_block < width
    return Tile(outer, (across,), kernel.cols, y_block, x_block, looped)


def _ordered(kernel: Kernel, axes: tuple[Axis, ...], kind: type[Load] | type[Store]) -> tuple[Axis, ...]:
    """Axes sorted by their stride in the widest access of a kind, where all strides are known numbers."""
    widest = max(
        (i for i, ins in enumerate(kernel.body) if isinstance(ins, kind)),
        key=lambda i: len(kernel.axes_of[i] & {a.symbol for a in axes}),
        default=None,
    )
    if widest is None:
        return axes
    linear, _ = coefficients(kernel.body[widest].index, tuple(a.symbol for a in axes))
    strides = {a.symbol: linear.get(a.symbol, sympy.S.Zero) for a in axes}
    if not all(s.is_Integer and s > 0 for s in strides.values()):
        return axes
    return tuple(sorted(axes, key=lambda a: -strides[a.symbol]))


def _unit_stride_bytes(kernel: Kernel) -> Counter[Symbol]:
    """Bytes moved by accesses that walk memory contiguously along each axis."""
    axes = {a.symbol: a for a in kernel.rows + kernel.cols}
    out: Counter[Symbol] = Counter()
    for ins, along in zip(kernel.body, kernel.axes_of):
        if isinstance(ins, Load | Store):
            count = math.prod(_hint(axes[s].size) for s in along)
            linear, _ = coefficients(ins.index, tuple(along))
            for s, stride in linear.items():
                if abs(stride) == 1:
                    out[s] += count * kernel.buffer(ins.buffer).dtype.itemsize
    return out


def _streams_along_rows(kernel: Kernel) -> bool:
    streams = _unit_stride_bytes(kernel)
    total = lambda axes: sum(streams[a.symbol] for a in axes)
    return total(kernel.rows) > total(kernel.cols)


def _peak_live(kernel: Kernel) -> int:
    """Most full-level values that are alive at once."""
    last = {a: i for i, ins in enumerate(kernel.body) for a in arguments(ins)}
    alive = [sum(f and d <= i < last.get(d, d) for d, f in enumerate(kernel.is_full)) for i in range(len(kernel.body))]
    return max(1, *alive)


def _widest(kernel: Kernel) -> int:
    return max(b.dtype.itemsize for b in kernel.buffers)


def _hint(size: Expr) -> int:
    size = sympy.sympify(size)
    return int(size) if size.is_Integer else UNKNOWN_SIZE


def _block(size: Expr) -> int:
    """The smallest power of two that covers a size."""
    return 1 << max(0, _hint(size) - 1).bit_length()


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def index_bits(kernel: Kernel) -> int:
    """32 where every index and loop count provably stays below 2³¹ (with a block's overhang), else 64."""
    ranges = {a.symbol: (0, max(0, _hint(a.size) - 1)) for a in kernel.rows + kernel.cols}
    counts = [numel(kernel.rows), numel(kernel.cols)]
    if not all(_is_static(n) and n < INT32_LIMIT for n in counts):
        return 64
    return 32 if all(_interval(e, ranges) for e in expressions(kernel.body)) else 64


def _is_static(size: Expr) -> bool:
    return sympy.sympify(size).is_Integer


def _interval(e: Expr, ranges: dict[Symbol, tuple[int, int]]) -> tuple[int, int] | None:
    """Bounds of an integer expression if it and its parts stay within 32 bits, else None."""
    bounds = _bounds(e, ranges)
    return bounds if bounds and bounds[0] > -INT32_LIMIT and bounds[1] < INT32_LIMIT else None


def _bounds(e: Expr, ranges: dict[Symbol, tuple[int, int]]) -> tuple[int, int] | None:
    if e.is_Integer:
        return int(e), int(e)
    if e.is_Symbol:
        # A run-time value is int64 and makes what it is added to int64 too: it needs no bound.
        return ranges.get(e, (0, 0) if is_value(e) else None)
    args = [_interval(a, ranges) for a in e.args]
    if None in args:
        return None
    match e.func.__name__:
        case "Add":
            return sum(a[0] for a in args), sum(a[1] for a in args)
        case "Mul":
            low = high = 1
            for a in args:
                corners = [low * a[0], low * a[1], high * a[0], high * a[1]]
                low, high = min(corners), max(corners)
            return low, high
        case "FloorDiv" | "CleanDiv" if args[1][0] > 0:
            corners = [n // d for n in args[0] for d in args[1]]
            return min(corners), max(corners)
        case "Mod" | "PythonMod" if args[1][0] > 0:
            return 0, args[1][1] - 1
        case "Max":
            return max(a[0] for a in args), max(a[1] for a in args)
        case "Min":
            return min(a[0] for a in args), min(a[1] for a in args)
    return None
