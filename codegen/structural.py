"""Operators that build, join or select elements: generators, cat, padding, gathers, slice scatters, random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch.fx import Node

from optpass.codegen.dims import Dim, linear, single, value
from optpass.codegen.emit import widened
from optpass.codegen.expr import Expr, floor_div, value_symbol
from optpass.codegen.ir import Index
from optpass.codegen.lower import STRUCTURAL, Lowering
from optpass.codegen.meta import argument, dtype_of, normal_dim, scalar_expr, shape_of, static, strides_of
from optpass.codegen.philox import STREAM_SPACING
from optpass.codegen.views import broadcast, slice_start
from optpass.errors import UnsupportedOp

aten, prims = torch.ops.aten, torch.ops.prims
Dims = Sequence[Dim]

#: Operators without a tensor to read: cheaper to evaluate anew in each kernel than to store.
GENERATORS: set[object] = set()
#: Operators that read one argument at a computed place; that argument must be in memory or cheap to evaluate anew.
GATHERS: set[object] = set()


def _structural(*overloads: object, kind: set[object] | None = None):
    def register(fn):
        for overload in overloads:
            STRUCTURAL[overload] = fn
            if kind is not None:
                kind.add(overload)
        return fn

    return register


@_structural(aten.full.default, aten.full_like.default, aten.scalar_tensor.default, kind=GENERATORS)
def _full(low: Lowering, node: Node, dims: Dims) -> int:
    at = 0 if node.target is aten.scalar_tensor.default else 1
    fill = argument(node, at, "fill_value")
    out = low.scalar(fill, widened(dtype_of(node)))
    return low.e.round(out, dtype_of(node))


@_structural(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, kind=GENERATORS)
def _zeros(low: Lowering, node: Node, dims: Dims) -> int:
    return low.e.const(0, widened(dtype_of(node)))


@_structural(aten.ones.default, aten.ones_like.default, aten.new_ones.default, kind=GENERATORS)
def _ones(low: Lowering, node: Node, dims: Dims) -> int:
    return low.e.const(1, widened(dtype_of(node)))


@_structural(aten.arange.start_step, aten.arange.start, aten.arange.default, prims.iota.default, kind=GENERATORS)
def _arange(low: Lowering, node: Node, dims: Dims) -> int:
    dtype = dtype_of(node)
    if node.target is prims.iota.default:
        start, step = node.kwargs["start"], node.kwargs["step"]
    else:
        start = node.args[0] if node.target is not aten.arange.default else 0
        step = node.args[2] if len(node.args) > 2 else 1
    first, stride = scalar_expr(start), scalar_expr(step)
    if dtype.is_floating_point and (first is None or stride is None):
        raise UnsupportedOp("arange with fractional numbers")
    if first is None or stride is None:
        raise UnsupportedOp("arange with run-time bounds")
    out = low.e.builder.emit(Index(value(dims[0]) * stride + first))
    return low.e.round(low.e.cast(out, widened(dtype)), dtype)


@_structural(aten.cat.default)
def _cat(low: Lowering, node: Node, dims: Dims) -> int:
    """Piece by piece: the k-th tensor is read where the index falls into it; an inactive piece is never touched."""
    tensors = [t for t in node.args[0] if not (len(shape_of(t)) == 1 and shape_of(t)[0] == 0)]  # type: ignore[union-attr]
    dim = normal_dim(argument(node, 1, "dim", 0), len(dims))  # type: ignore[arg-type]
    dtype, at = dtype_of(node), value(dims[dim])
    position = low.e.index(at)
    result, start, starts = None, sympy.S.Zero, []
    for tensor in tensors:
        starts.append(start)
        start = start + shape_of(tensor)[dim]
    for tensor, begin in reversed(list(zip(tensors, starts))):
        size = shape_of(tensor)[dim]
        if size == 0:
            continue
        inside = low.e.test("ge", position, low.e.index(begin))
        below = low.e.test("lt", position, low.e.index(begin + size))
        active = low.e.test("and", inside, below)
        place = list(dims)
        place[dim] = single(at - begin, size)
        piece = low.under(active, tensor, place)
        if dtype_of(tensor) != dtype:
            piece = low.e.round(low.e.cast(low.e.round(piece, dtype_of(tensor)), widened(dtype)), dtype)
        result = piece if result is None else low.e.where(active, piece, result)
    if result is None:
        raise UnsupportedOp("cat of empty tensors")
    return result


@_structural(aten.constant_pad_nd.default)
def _pad(low: Lowering, node: Node, dims: Dims) -> int:
    source, pad = node.args[0], node.args[1]
    shape, place, active = shape_of(source), list(dims), None
    for k in range(len(pad) // 2):  # type: ignore[arg-type]
        d = len(shape) - 1 - k
        left = scalar_expr(pad[2 * k])  # type: ignore[index]
        if left is None:
            raise UnsupportedOp("padding by a run-time amount")
        at = value(dims[d]) - left
        place[d] = single(at, shape[d])
        position = low.e.index(at)
        inside = low.e.test("ge", position, low.e.const(0, torch.int64))
        inside = low.e.test("and", inside, low.e.test("lt", position, low.e.index(shape[d])))
        active = inside if active is None else low.e.test("and", active, inside)
    if active is None:
        return low.value(source, dims)  # type: ignore[arg-type]
    dtype = widened(dtype_of(node))
    fill = low.e.round(low.scalar(argument(node, 2, "value", 0), dtype), dtype_of(node))
    return low.e.where(active, low.under(active, source, place), fill)  # type: ignore[arg-type]


def _checked(low: Lowering, index: int, size: Expr, wrap: bool, message: str) -> Expr:
    """A run-time index, bounds-checked, as a symbol for index expressions."""
    index = low.e.cast(index, torch.int64)
    if low.mask is not None:  # outside the mask the index has no meaning and must not trip the check
        index = low.e.where(low.mask, index, low.e.const(0, torch.int64))
    return value_symbol(low.e.op("check_index", index, attr=(size, wrap, message)))


@_structural(aten.embedding.default, kind=GATHERS)
def _embedding(low: Lowering, node: Node, dims: Dims) -> int:
    table, indices = node.args[0], node.args[1]
    row = low.value(indices, dims[:-1])  # type: ignore[arg-type]
    size = shape_of(table)[0]
    at = _checked(low, row, size, False, "index out of range in self")
    return low.value(table, [single(at, size), dims[-1]])  # type: ignore[arg-type]


@_structural(aten.index_select.default, kind=GATHERS)
def _index_select(low: Lowering, node: Node, dims: Dims) -> int:
    source, dim, index = node.args
    shape = shape_of(source)
    dim = normal_dim(dim, len(shape))
    chosen = low.value(index, [dims[dim]] if len(shape_of(index)) else [])
    at = _checked(low, chosen, shape[dim], False, "index out of range in self")
    place = list(dims)
    place[dim] = single(at, shape[dim])
    return low.value(source, place)


@_structural(aten.gather.default, kind=GATHERS)
def _gather(low: Lowering, node: Node, dims: Dims) -> int:
    source, dim, index = node.args[:3]
    shape = shape_of(source)
    if not shape or len(shape_of(index)) != len(shape):
        raise UnsupportedOp("gather on a scalar")
    dim = normal_dim(dim, len(shape))
    at = _checked(low, low.value(index, dims), shape[dim], False, f"index out of bounds for dimension {dim} of gather")
    place = list(dims)
    place[dim] = single(at, shape[dim])
    return low.value(source, place)


@_structural(aten.index.Tensor, aten._unsafe_index.Tensor, kind=GATHERS)
def _index(low: Lowering, node: Node, dims: Dims) -> int:
    """Advanced indexing by integer tensors (bool masks have a data-dependent shape and stay with ATen)."""
    source, indices = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    shape = shape_of(source)  # type: ignore[arg-type]
    used = [d for d, i in enumerate(indices) if i is not None]
    if any(dtype_of(indices[d]) in (torch.bool, torch.uint8) for d in used):
        raise UnsupportedOp("indexing by a mask")
    if not all(_is_row_major(indices[d]) for d in used):
        raise UnsupportedOp("indexing by a tensor whose layout eager passes on to the result")
    rank = max(len(shape_of(indices[d])) for d in used)
    adjacent = used == list(range(used[0], used[0] + len(used)))
    first = used[0] if adjacent else 0
    where = dims[first : first + rank]
    rest = iter([*dims[:first], *dims[first + rank :]])
    place: list[Dim] = []
    for d in range(len(shape)):
        if d in used:
            chosen = low.value(indices[d], broadcast(where, shape_of(indices[d])))
            message = f"index is out of bounds for dimension {d}"
            place.append(single(_checked(low, chosen, shape[d], True, message), shape[d]))
        else:
            place.append(next(rest))
    return low.value(source, place)  # type: ignore[arg-type]


def _is_row_major(node: Node) -> bool:
    expected = sympy.S.One
    for size, stride in zip(reversed(shape_of(node)), reversed(strides_of(node.meta["val"]))):
        if size != 1 and sympy.expand(stride - expected) != 0:
            return False
        expected = expected * size
    return True


@_structural(aten.select_scatter.default)
def _select_scatter(low: Lowering, node: Node, dims: Dims) -> int:
    base, piece, dim, index = node.args[:4]
    shape = shape_of(base)  # type: ignore[arg-type]
    dim = normal_dim(dim, len(shape))  # type: ignore[arg-type]
    at = scalar_expr(index)
    if at is None or not at.is_Integer:
        raise UnsupportedOp("select_scatter at a run-time index")
    at = at + shape[dim] if at < 0 else at
    active = low.e.test("eq", low.e.index(value(dims[dim])), low.e.index(at))
    place = [d for i, d in enumerate(dims) if i != dim]
    return low.e.where(active, low.under(active, piece, place), low.value(base, dims))  # type: ignore[arg-type]


@_structural(aten.slice_scatter.default)
def _slice_scatter(low: Lowering, node: Node, dims: Dims) -> int:
    base, piece = node.args[0], node.args[1]
    shape = shape_of(base)  # type: ignore[arg-type]
    dim = normal_dim(argument(node, 2, "dim", 0), len(shape))  # type: ignore[arg-type]
    start, step = slice_start(argument(node, 3, "start"), shape[dim]), static(argument(node, 5, "step", 1), "the step")
    count, at = shape_of(piece)[dim], value(dims[dim])  # type: ignore[arg-type]
    e, position = low.e, low.e.index(at - start)
    active = e.test("ge", position, e.const(0, torch.int64))
    active = e.test("and", active, e.test("lt", position, e.index(count * step)))
    if step != 1:
        on_step = e.test("eq", e.op("imod", position, e.const(step, torch.int64)), e.const(0, torch.int64))
        active = e.test("and", active, on_step)
    place = list(dims)
    place[dim] = single(floor_div(at - start, sympy.Integer(step)), count)
    return e.where(active, low.under(active, piece, place), low.value(base, dims))  # type: ignore[arg-type]


@_structural(torch.ops.optpass.philox_uniform.default, kind=GENERATORS)
def _philox(low: Lowering, node: Node, dims: Dims) -> int:
    _, seed, stream = node.args
    strides = strides_of(node.meta["val"])
    counter = low.e.index(linear(dims, strides) + stream * STREAM_SPACING)
    return low.e.op("rand", low.value(seed, []), counter, dtype=torch.float32)  # type: ignore[arg-type]
