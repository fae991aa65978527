"""One spelling per operation."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from optpass.passes.base import PassContext
from optpass.passes.rules import Become, Candidate, Outcome, Refuse, Rule, RulePass
from optpass.torch_private import OpOverload

__all__ = ["Canonicalise"]

aten = torch.ops.aten


def _scalar_overload(node: Candidate) -> Outcome:
    return Become(_TENSOR_FORM[node.target], node.args, node.kwargs)


_TENSOR_FORM = {
    aten.add.Scalar: aten.add.Tensor,
    aten.div.Scalar: aten.div.Tensor,
    aten.mul.Scalar: aten.mul.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
}


def _float_scalar(node: Candidate) -> Outcome:
    scalar = _scalar_operand(node)
    if type(scalar) is not int or not _is_floating(node.args[0]):
        return None
    if abs(scalar) > 1 << 53:
        return Refuse("float64 does not hold the integer")
    return Become(node.target, (node.args[0], float(scalar)), node.kwargs)


def _sub_scalar(node: Candidate) -> Outcome:
    scalar = _scalar_operand(node)
    if node.kwargs or type(scalar) is not float or not _is_floating(node.args[0]):
        return None
    return Become(aten.add.Tensor, (node.args[0], -scalar))


def _mul_minus_one(node: Candidate) -> Outcome:
    return Become(aten.neg.default, (node.args[0],)) if _scalar_operand(node) == -1 else None


def _div_power_of_two(node: Candidate) -> Outcome:
    scalar = _scalar_operand(node)
    if type(scalar) is not float or not _is_floating(node.args[0]):
        return None
    mantissa, exponent = math.frexp(scalar)
    if abs(mantissa) != 0.5:
        return Refuse("the divisor is not a power of two, so that its reciprocal rounds")
    if abs(exponent) > 100:
        return Refuse("the reciprocal may leave the range of float32")
    return Become(aten.mul.Tensor, (node.args[0], 1.0 / scalar))


class Canonicalise(RulePass):
    """Give each operation one spelling, so that every later rule matches a single form.

    Before:
        a = aten.sum.dim_IntList(x, [1], False)
        b = aten.div.Tensor(x, 4)
        c = aten.sub.Tensor(b, 1)
    After:
        a = aten.sum.dim_IntList(x, [1])
        b = aten.mul.Tensor(x, 0.25)
        c = aten.add.Tensor(b, -1.0)
    Holds when: arguments given by name have a place, trailing ones equal their defaults in value and type; for
        arithmetic, the other operand is a plain number and the tensor is floating-point.
    Leaves alone: divisors that are not powers of two, integers beyond 2**53, integer tensors, any `alpha`, symbolic
        scalars, operators without a schema.
    Numerics: exact, gradients too: `x - c` is `x + (-c)`, and a power of two has an exact reciprocal.
    Source: ours.
    """

    name: ClassVar[str] = "canonicalise"
    exact: ClassVar[bool] = True
    rules: ClassVar[Sequence[Rule]] = (
        Rule("scalar-overload", tuple(_TENSOR_FORM), _scalar_overload),
        Rule("float-scalar", (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor), _float_scalar),
        Rule("sub-scalar", (aten.sub.Tensor,), _sub_scalar),
        Rule("mul-minus-one", (aten.mul.Tensor,), _mul_minus_one),
        Rule("div-power-of-two", (aten.div.Tensor,), _div_power_of_two),
    )

    def run(self, gm: GraphModule, ctx: PassContext) -> None:
        for node in gm.graph.nodes:
            if isinstance(node.target, OpOverload):
                normal = _normal_arguments(node)
                if normal is not None and ctx.apply("defaults", node):
                    node.args, node.kwargs = normal
        super().run(gm, ctx)


def _normal_arguments(node: Candidate) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Positional arguments by position and no trailing defaults; `None` if the node has that form already."""
    positional, keyword = _parameters(node.target)
    args, kwargs = list(node.args), dict(node.kwargs)
    for name, _ in positional[len(args) :]:
        if name not in kwargs:
            break
        args.append(kwargs.pop(name))
    while args and _is_default(args[-1], positional[len(args) - 1][1]) and not kwargs.keys() & dict(positional).keys():
        args.pop()
    for name in [name for name, default in keyword if name in kwargs and _is_default(kwargs[name], default)]:
        del kwargs[name]
    if len(args) == len(node.args) and len(kwargs) == len(node.kwargs):
        return None
    return tuple(args), kwargs


_REQUIRED = object()


@functools.cache
def _parameters(target: OpOverload) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Names and defaults of the positional and the keyword-only parameters."""
    pairs = [
        (a.kwarg_only, (a.name, a.default_value if a.has_default_value() else _REQUIRED))
        for a in target._schema.arguments
    ]
    return [pair for only, pair in pairs if not only], [pair for only, pair in pairs if only]


def _is_default(value: Any, default: Any) -> bool:
    """By type as well: 1, 1.0 and True are equal and differ."""
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return len(value) == len(default) and all(map(_is_default, value, default))
    return type(value) is type(default) and value == default


def _scalar_operand(node: Node) -> Any:
    """The second operand if it is a plain number."""
    other = node.args[1] if len(node.args) > 1 else None
    return other if isinstance(other, (int, float)) else None


def _is_floating(node: Any) -> bool:
    value = node.meta["val"] if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point
