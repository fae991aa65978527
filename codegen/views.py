"""View operators as index maps: where does element ``dims`` of the view lie in the tensor viewed?

`source` answers for one view node, pulling an index from the result back to the input. `push` goes the other way for
views that keep every element (reshape, permute, squeeze, …), which is how fusion carries a kernel's axes forward.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import sympy
import torch
from torch.fx import Node

from optpass.codegen.dims import Dim, regroup, single, value
from optpass.codegen.meta import argument, normal_dim, normal_dims, scalar_expr, shape_of, static, to_expr
from optpass.errors import UnsupportedOp

aten = torch.ops.aten
Dims = Sequence[Dim]

_PULL: dict[object, Callable[[Node, Node, Dims], Dims]] = {}
_PUSH: dict[object, Callable[[Node, Node, Dims], Dims]] = {}


def _pull(*overloads: object):
    def register(fn):
        _PULL.update(dict.fromkeys(overloads, fn))
        return fn

    return register


def _push(*overloads: object):
    def register(fn):
        _PUSH.update(dict.fromkeys(overloads, fn))
        return fn

    return register


def is_view(node: Node) -> bool:
    """Whether the node is an index map of one tensor (``getitem`` of a split or unbind included)."""
    if node.op != "call_function":
        return False
    if node.target in _PULL:
        return True
    return _is_piece(node)


def is_bijective(node: Node) -> bool:
    """Whether the view keeps every element exactly once."""
    return node.target in _PUSH


def viewed(node: Node) -> Node:
    """The tensor that a view node looks at."""
    source = node.args[0]
    return source.args[0] if _is_piece(node) else source  # type: ignore[union-attr,return-value]


def source(node: Node, dims: Dims) -> tuple[Node, Dims]:
    """The viewed tensor and the index in it of element ``dims`` of ``node``.

    Raises:
        UnsupportedOp: the map cannot be expressed (symbolic sizes that do not nest, a run-time offset).
    """
    if _is_piece(node):
        return _piece(node, dims)
    tensor = node.args[0]
    return tensor, _PULL[node.target](node, tensor, dims)  # type: ignore[return-value,arg-type]


def push(node: Node, dims: Dims) -> Dims:
    """The index in a bijective view of element ``dims`` of the tensor viewed.

    Raises:
        UnsupportedOp: see `source`.
    """
    return _PUSH[node.target](node, node.args[0], dims)  # type: ignore[arg-type]


def _is_piece(node: Node) -> bool:
    return (
        node.target is operator.getitem
        and isinstance(node.args[0], Node)
        and node.args[0].target in (aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)
    )


def _piece(node: Node, dims: Dims) -> tuple[Node, Dims]:
    """Element of one piece of a split or unbind."""
    pieces, number = node.args
    tensor = pieces.args[0]
    rank = len(shape_of(tensor))
    if pieces.target is aten.unbind.int:
        dim = normal_dim(argument(pieces, 1, "dim", 0), rank)
        out = list(dims)
        out.insert(dim, single(sympy.Integer(number), shape_of(tensor)[dim]))
        return tensor, out
    dim = normal_dim(argument(pieces, 2, "dim", 0), rank)
    sizes = [to_expr(v.shape[dim]) for v in pieces.meta["val"][:number]]
    return tensor, _shift(dims, dim, sympy.Add(*sizes), shape_of(tensor)[dim])


def _shift(dims: Dims, dim: int, start: object, size: object, step: int = 1) -> Dims:
    out = list(dims)
    out[dim] = single(value(out[dim]) * step + start, size)
    return out


#: Views that keep the row-major order of elements and change the shape.
RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints)


@_pull(*RESHAPES)
def _view_pull(node: Node, tensor: Node, dims: Dims) -> Dims:
    return _regroup(dims, shape_of(tensor))


@_push(*RESHAPES)
def _view_push(node: Node, tensor: Node, dims: Dims) -> Dims:
    return _regroup(dims, shape_of(node))


def _regroup(dims: Dims, shape: Sequence) -> Dims:
    out = regroup(dims, shape)
    if out is None:
        raise UnsupportedOp(f"reshape to {shape} needs sizes that nest")
    return out


@_pull(aten.alias.default, aten.detach.default)
@_push(aten.alias.default, aten.detach.default)
def _same(node: Node, tensor: Node, dims: Dims) -> Dims:
    return dims


def _permutation(node: Node, rank: int) -> list[int]:
    """``order[d]``: the input dimension that output dimension d shows."""
    if node.target is aten.permute.default:
        return [normal_dim(d, rank) for d in node.args[1]]  # type: ignore[union-attr]
    order = list(range(rank))
    if node.target is aten.t.default:
        return order[::-1]
    a, b = normal_dim(node.args[1], rank), normal_dim(node.args[2], rank)  # type: ignore[arg-type]
    order[a], order[b] = order[b], order[a]
    return order


@_pull(aten.permute.default, aten.transpose.int, aten.t.default)
def _permute_pull(node: Node, tensor: Node, dims: Dims) -> Dims:
    out: list[Dim] = [()] * len(dims)
    for d, source_dim in enumerate(_permutation(node, len(dims))):
        out[source_dim] = dims[d]
    return out


@_push(aten.permute.default, aten.transpose.int, aten.t.default)
def _permute_push(node: Node, tensor: Node, dims: Dims) -> Dims:
    return [dims[d] for d in _permutation(node, len(dims))]


@_pull(aten.unsqueeze.default)
def _unsqueeze_pull(node: Node, tensor: Node, dims: Dims) -> Dims:
    dim = normal_dim(node.args[1], len(dims))  # type: ignore[arg-type]
    return [d for i, d in enumerate(dims) if i != dim]


@_push(aten.unsqueeze.default)
def _unsqueeze_push(node: Node, tensor: Node, dims: Dims) -> Dims:
    out = list(dims)
    out.insert(normal_dim(node.args[1], len(dims) + 1), ())  # type: ignore[arg-type]
    return out


def _squeezed(node: Node, tensor: Node) -> set[int]:
    shape = shape_of(tensor)
    named = argument(node, 1, "dim")
    wanted = normal_dims(named, len(shape))  # type: ignore[arg-type]
    return {d for d in wanted if shape[d] == 1} if len(shape) else set()


@_pull(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze_pull(node: Node, tensor: Node, dims: Dims) -> Dims:
    gone, rest = _squeezed(node, tensor), iter(dims)
    return [() if d in gone else next(rest) for d in range(len(shape_of(tensor)))]


@_push(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze_push(node: Node, tensor: Node, dims: Dims) -> Dims:
    gone = _squeezed(node, tensor)
    return [d for i, d in enumerate(dims) if i not in gone]


@_pull(aten.expand.default)
def _expand_pull(node: Node, tensor: Node, dims: Dims) -> Dims:
    return broadcast(dims, shape_of(tensor))


def broadcast(dims: Dims, shape: Sequence) -> Dims:
    """The index in a tensor of ``shape`` that broadcasting reads for point ``dims`` of the result."""
    lead = len(dims) - len(shape)
    return [() if shape[d] == 1 else dims[lead + d] for d in range(len(shape))]


@_pull(aten.slice.Tensor)
def _slice_pull(node: Node, tensor: Node, dims: Dims) -> Dims:
    shape = shape_of(tensor)
    dim = normal_dim(argument(node, 1, "dim", 0), len(shape))  # type: ignore[arg-type]
    step = static(argument(node, 4, "step", 1), "the step of a slice")
    return _shift(dims, dim, slice_start(argument(node, 2, "start"), shape[dim]), shape[dim], step)


def slice_start(start: object, size: object):
    """The first index of a slice: negative counts from the end, then clamped, as Python does."""
    if start is None:
        return sympy.S.Zero
    start = scalar_expr(start)
    if start is None:
        raise UnsupportedOp("a slice starts at a run-time value")
    if start.is_Integer and size.is_Integer:
        return sympy.Integer(max(start + size if start < 0 else min(start, size), 0))
    if start.is_nonnegative:
        return start if (size - start).is_nonnegative else sympy.Min(start, size)
    if start.is_Integer:
        return sympy.Max(start + size, 0)
    raise UnsupportedOp("a slice starts at a symbolic value")


@_pull(aten.select.int)
def _select_pull(node: Node, tensor: Node, dims: Dims) -> Dims:
    shape = shape_of(tensor)
    dim = normal_dim(node.args[1], len(shape))  # type: ignore[arg-type]
    index = scalar_expr(node.args[2])
    if index is None or not (index.is_Integer or index.is_nonnegative):
        raise UnsupportedOp("select at a run-time index")
    if index.is_negative:
        index = index + shape[dim]
    out = list(dims)
    out.insert(dim, single(index, shape[dim]))
    return out


@_pull(aten.flip.default)
def _flip_pull(node: Node, tensor: Node, dims: Dims) -> Dims:
    shape, out = shape_of(tensor), list(dims)
    for d in normal_dims(node.args[1], len(shape)) if node.args[1] else ():  # type: ignore[arg-type]
        out[d] = single(shape[d] - 1 - value(out[d]), shape[d])
    return out


@_pull(aten.diagonal.default)
def _diagonal_pull(node: Node, tensor: Node, dims: Dims) -> Dims:
    shape = shape_of(tensor)
    offset = static(argument(node, 1, "offset", 0), "the offset of a diagonal")
    d1 = normal_dim(argument(node, 2, "dim1", 0), len(shape))  # type: ignore[arg-type]
    d2 = normal_dim(argument(node, 3, "dim2", 1), len(shape))  # type: ignore[arg-type]
    along = value(dims[-1])
    rest = iter(dims[:-1])
    at = {d1: along + max(-offset, 0), d2: along + max(offset, 0)}
    return [single(at[d], shape[d]) if d in at else next(rest) for d in range(len(shape))]


@_pull(aten.unfold.default)
def _unfold_pull(node: Node, tensor: Node, dims: Dims) -> Dims:
    shape = shape_of(tensor)
    dim, step = normal_dim(node.args[1], len(shape)), static(node.args[3], "the step of unfold")  # type: ignore[arg-type]
    out = list(dims[:-1])
    if len(shape) == 0:
        return []
    out[dim] = single(value(out[dim]) * step + value(dims[-1]), shape[dim])
    return out
