"""Reduction operators as kernel reductions. Accumulation is in float32 (float64 for float64), as eager accumulates."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch.fx import Node

from optpass.codegen.dims import Dim
from optpass.codegen.emit import widened
from optpass.codegen.expr import Expr
from optpass.codegen.ir import Index, Part, Reduce
from optpass.codegen.lower import REDUCTIONS, Lowering
from optpass.codegen.meta import argument, dtype_of, normal_dims, shape_of
from optpass.errors import UnsupportedOp

aten = torch.ops.aten
Dims = Sequence[Dim]

#: A position that no argument list reaches, for keyword-only arguments.
_BY_NAME = 99

#: overload -> (position of its dimension list, position of keepdim)
_SIGNATURES: dict[object, tuple[int, int]] = {}


def is_reduction(node: Node) -> bool:
    return node.op == "call_function" and node.target in REDUCTIONS


def reduced_dims(node: Node) -> tuple[int, ...]:
    """The input dimensions that a reduction node folds."""
    at, _ = _SIGNATURES[node.target]
    rank = len(shape_of(node.args[0]))  # type: ignore[arg-type]
    return normal_dims(argument(node, at, "dim") if at >= 0 else None, rank)  # type: ignore[arg-type]


def keeps_dims(node: Node) -> bool:
    _, at = _SIGNATURES[node.target]
    return bool(argument(node, at, "keepdim", False)) if at >= 0 else False


def reduced_place(node: Node, place: Dims) -> Dims:
    """The place of a reduction's result, given that of its input."""
    gone, keep = set(reduced_dims(node)), keeps_dims(node)
    return [() if d in gone else dim for d, dim in enumerate(place) if keep or d not in gone]


def _reduction(*overloads: object, dim: int = 1, keepdim: int = 2):
    def register(fn):
        for overload in overloads:
            _SIGNATURES[overload] = (dim, keepdim)
            REDUCTIONS[overload] = lambda low, node, dims, field, fn=fn: fn(
                low, node, _input_place(low, node, dims), field
            )
        return fn

    return register


def _input_place(low: Lowering, node: Node, dims: Dims) -> Dims:
    """The kernel's place of the reduction's input, checked against the place that the result is asked at."""
    place = low.domain.places.get(f"{node.name}.input")
    if place is None or tuple(reduced_place(node, place)) != tuple(dims):
        raise UnsupportedOp(f"reduction {node.name} is read at another index than its kernel's rows")
    if low.mask is not None:
        raise UnsupportedOp(f"reduction {node.name} is read under a mask")
    return place


def _count(node: Node) -> Expr:
    shape = shape_of(node.args[0])  # type: ignore[arg-type]
    return sympy.Mul(*(shape[d] for d in reduced_dims(node)))


def _reduce(low: Lowering, op: str, value: int, dtype: torch.dtype | None = None) -> int:
    if not low.domain.cols:  # all dimensions folded have size 1: printers see no reduction
        return _fold_of_one(low, op, value)
    return low.e.builder.emit(Reduce(op, value, dtype or low.e.dtype(value)))


def _fold_of_one(low: Lowering, op: str, value: int) -> int:
    match op:
        case "argmax" | "argmin":
            return low.e.const(0, torch.int64)
        case "sum" if low.e.dtype(value).is_floating_point:
            return low.e.add(low.e.like(0, value), value)  # as eager: -0.0 becomes 0.0
        case _:
            return value


def _finish(low: Lowering, node: Node, value: int) -> int:
    value = low.e.cast(value, widened(dtype_of(node)))
    return low.e.round(value, dtype_of(node)) if low.e.eager_rounding else value


def _accumulated(low: Lowering, node: Node, place: Dims) -> int:
    """The input in the dtype that sums of it are accumulated in."""
    source: Node = node.args[0]  # type: ignore[assignment]
    value = low.value(source, place)
    target = widened(dtype_of(node))
    return value if low.e.dtype(value) == target else low.e.cast(low.e.round(value, dtype_of(source)), target)


@_reduction(aten.sum.default, dim=-1, keepdim=-1)
@_reduction(aten.sum.dim_IntList)
def _sum(low: Lowering, node: Node, place: Dims, field: int) -> int:
    return _finish(low, node, _reduce(low, "sum", _accumulated(low, node, place)))


@_reduction(aten.mean.default, dim=-1, keepdim=-1)
@_reduction(aten.mean.dim)
def _mean(low: Lowering, node: Node, place: Dims, field: int) -> int:
    total = _reduce(low, "sum", _accumulated(low, node, place))
    return _finish(low, node, low.e.div(total, _number(low, _count(node), total)))


def _number(low: Lowering, expr: Expr, like: int) -> int:
    """A size expression as a constant or a value of the dtype of ``like``."""
    if expr.is_Integer:
        return low.e.const(int(expr), low.e.dtype(like))
    return low.e.cast(low.e.builder.emit(Index(expr)), low.e.dtype(like))


@_reduction(aten.prod.default, dim=-1, keepdim=-1)
@_reduction(aten.prod.dim_int)
def _prod(low: Lowering, node: Node, place: Dims, field: int) -> int:
    return _finish(low, node, _reduce(low, "prod", _accumulated(low, node, place)))


def _extremum(low: Lowering, node: Node, place: Dims, op: str) -> int:
    source: Node = node.args[0]  # type: ignore[assignment]
    value = low.value(source, place)
    if low.e.dtype(value) == torch.bool:
        return _reduce(low, "any" if op == "max" else "all", value)
    return _reduce(low, op, value)


for _op, _overloads in {
    "max": (aten.amax.default, aten.max.default),
    "min": (aten.amin.default, aten.min.default),
}.items():

    def _amax(low: Lowering, node: Node, place: Dims, field: int, op: str = _op) -> int:
        return _extremum(low, node, place, op)

    _reduction(_overloads[0])(_amax)
    _reduction(_overloads[1], dim=-1, keepdim=-1)(_amax)

    def _max_dim(low: Lowering, node: Node, place: Dims, field: int, op: str = _op) -> int:
        return _extremum(low, node, place, op) if field == 0 else _position(low, node, place, op)

    _reduction(getattr(aten, _op).dim)(_max_dim)

    def _argmax(low: Lowering, node: Node, place: Dims, field: int, op: str = _op) -> int:
        return _position(low, node, place, op)

    _reduction(getattr(aten, f"arg{_op}").default)(_argmax)


def _position(low: Lowering, node: Node, place: Dims, op: str) -> int:
    """Where the extremum lies: narrow values compare as eager stored them, so ties fall alike."""
    source: Node = node.args[0]  # type: ignore[assignment]
    if dtype_of(source) == torch.bool:
        raise UnsupportedOp(f"arg{op} of bools")
    value = low.e.round(low.value(source, place), dtype_of(source))
    return _reduce(low, f"arg{op}", value, torch.int64)


for _op in ("any", "all"):

    def _any(low: Lowering, node: Node, place: Dims, field: int, op: str = _op) -> int:
        source: Node = node.args[0]  # type: ignore[assignment]
        value = low.e.cast(low.e.round(low.value(source, place), dtype_of(source)), torch.bool)
        return low.e.cast(_reduce(low, op, value), widened(dtype_of(node)))

    _packet = getattr(aten, _op)
    _reduction(_packet.default, dim=-1, keepdim=-1)(_any)
    _reduction(_packet.dim, _packet.dims)(_any)


def _variance(low: Lowering, node: Node, place: Dims) -> tuple[int, int]:
    """Variance and mean. A row that stays on chip is read twice (two-pass form), a longer one folds by Welford."""
    e, source = low.e, node.args[0]
    value = e.cast(low.value(source, place), widened(dtype_of(source)))  # type: ignore[arg-type]
    if e.dtype(value) not in (torch.float32, torch.float64):
        raise UnsupportedOp("variance of integers")
    count = _count(node)
    if low.domain.on_chip or not low.domain.cols:
        mean = e.div(_reduce(low, "sum", value), _number(low, count, value))
        deviation = e.sub(value, mean)
        squares = _reduce(low, "sum", e.mul(deviation, deviation))
    else:
        pair = _reduce(low, "welford", value)
        mean = e.builder.emit(Part(pair, 0, e.dtype(value)))
        squares = e.builder.emit(Part(pair, 1, e.dtype(value)))
    correction = _correction(node)
    freedom = sympy.Max(count - sympy.nsimplify(correction), 0) if float(correction).is_integer() else None
    if freedom is None:
        if not count.is_Integer:
            raise UnsupportedOp("variance with a fractional correction of a symbolic count")
        divisor = e.like(max(float(count) - correction, 0.0), value)
    else:
        divisor = _number(low, freedom, value)
    return e.div(squares, divisor), mean


def _correction(node: Node) -> float:
    correction = node.kwargs.get("correction", 1)
    return 1 if correction is None else correction  # type: ignore[return-value]


@_reduction(aten.var.correction, keepdim=_BY_NAME)
def _var(low: Lowering, node: Node, place: Dims, field: int) -> int:
    return low.e.cast(_variance(low, node, place)[0], widened(dtype_of(node)))


@_reduction(aten.std.correction, keepdim=_BY_NAME)
def _std(low: Lowering, node: Node, place: Dims, field: int) -> int:
    return low.e.op("sqrt", _var(low, node, place, field))


@_reduction(aten.var_mean.correction, keepdim=_BY_NAME)
def _var_mean(low: Lowering, node: Node, place: Dims, field: int) -> int:
    return _variance(low, node, place)[field]
