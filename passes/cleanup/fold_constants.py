"""Tensors known at compile time to repeat one number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from optpass.passes.aliases import Aliases
from optpass.passes.base import Pass, PassContext
from optpass.passes.effects import is_random
from optpass.passes.meta import fake_call, meta_difference
from optpass.torch_private import OpOverload

__all__ = ["FoldConstants"]

aten = torch.ops.aten

# Each shows or copies elements of its first argument and nothing else.
_MOVES = frozenset(
    {aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default, aten.permute.default}
    | {aten.t.default, aten.transpose.int, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims}
    | {aten.unsqueeze.default, aten.slice.Tensor, aten.select.int, aten.clone.default, aten.alias.default}
    | {aten.detach.default, aten.lift_fresh_copy.default, aten.repeat.default}
)
_FILLS = frozenset({aten.full.default, aten.scalar_tensor.default, aten.ones.default, aten.zeros.default})
_FILLS_LIKE = frozenset({aten.full_like.default, aten.ones_like.default, aten.zeros_like.default})
_TAKES_SCALAR = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})


class FoldConstants(Pass):
    """Follow tensors that repeat one number, make their results `full`, and arithmetic with them take the number.

    Before:
        a = aten.full.default([], 2.0)
        b = aten.exp.default(a)
        c = aten.mul.Tensor(x, a)
    After:
        b = aten.full.default([], 7.38905609893065, dtype=torch.float32, …)
        c = aten.mul.Tensor(x, 2.0)
    Holds when: operations are pointwise or move elements; the result's shape is static and its strides are those of
        `full`; a number that stands for a tensor operand is one of the other operand's dtype.
    Leaves alone: random numbers, parameters and buffers, results that differ from place to place (`arange` and what is
        computed from it is cheaper to compute again than to load), tensors that something writes to, complex numbers.
    Numerics: exact: PyTorch itself computes the one element.
    Source: ours.
    """

    name: ClassVar[str] = "fold-constants"
    exact: ClassVar[bool] = True

    def run(self, gm: GraphModule, ctx: PassContext) -> None:
        aliases = Aliases(gm.graph)
        elements: dict[Node, torch.Tensor] = {}
        for node in gm.graph.nodes:
            if node.op == "call_function" and not aliases.is_written(node):
                element = _element(node, gm, elements)
                if element is not None:
                    elements[node] = element
        for node, element in elements.items():
            if node.target not in _FILLS and any(user not in elements for user in node.users):
                self._fill(node, element, aliases, ctx)
        for node in gm.graph.nodes:
            if node.target in _TAKES_SCALAR and node not in elements and node.args[1] in elements:
                self._take_scalar(node, elements[node.args[1]], ctx)

    def _fill(self, node: Node, element: torch.Tensor, aliases: Aliases, ctx: PassContext) -> None:
        value = node.meta["val"]
        number = element.item()
        if any(isinstance(size, torch.SymInt) for size in value.shape):
            ctx.decline("fill", node, "its shape is symbolic")
            return
        if node.target in _MOVES and aliases.is_returned_twice(node):
            ctx.decline("fill", node, "it shares storage with another output")
            return
        args = ([int(size) for size in value.shape], number)
        kwargs = {"dtype": value.dtype, "layout": torch.strided, "device": value.device, "pin_memory": False}
        fresh = fake_call(aten.full.default, args, kwargs, ctx.fake_mode)
        difference = meta_difference(value, fresh)
        if difference is not None:
            ctx.decline("fill", node, difference)
        elif ctx.apply("fill", node):
            node.target, node.args, node.kwargs = aten.full.default, args, kwargs
            ctx.vouch(node, fresh)

    def _take_scalar(self, node: Node, element: torch.Tensor, ctx: PassContext) -> None:
        tensor, operand = node.args[0], node.args[1]
        number = element.item()
        if tensor in (None, operand) or not isinstance(tensor, Node):
            return
        dtype = tensor.meta["val"].dtype
        if dtype == torch.bool or dtype.is_floating_point != element.dtype.is_floating_point:
            ctx.decline("scalar-operand", node, "the operands are of different kinds")
        elif not _equal_numbers(torch.tensor(number, dtype=dtype).item(), number):
            ctx.decline("scalar-operand", node, f"{dtype} does not hold {number}")
        else:
            fresh = fake_call(node.target, (tensor, number), node.kwargs, ctx.fake_mode)
            difference = meta_difference(node.meta["val"], fresh)
            if difference is not None:
                ctx.decline("scalar-operand", node, difference)
            elif ctx.apply("scalar-operand", node):
                node.args = (tensor, number)
                ctx.vouch(node, fresh)


def _element(node: Any, gm: GraphModule, known: Mapping[Node, torch.Tensor]) -> torch.Tensor | None:
    """The one number that the node's tensor repeats, as a CPU tensor of its dtype and rank with sizes 1, or `None`."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dtype.is_complex:
        return None
    shape = [1] * value.dim()
    if node.target in _FILLS or node.target in _FILLS_LIKE:
        return _filled(node, shape, value.dtype)
    if node.target in _MOVES or node.target is aten._to_copy.default:
        source = node.args[0]
        element = known.get(source) if isinstance(source, Node) else None
        if element is None:
            element = _literal(source, gm) if node.target is aten.lift_fresh_copy.default else None
        return None if element is None else element.reshape(-1)[:1].to(value.dtype).reshape(shape)
    if not _is_pointwise(node) or not node.all_input_nodes:
        return None
    if not all(argument in known for argument in node.all_input_nodes):
        return None
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    result = node.target(*args, **kwargs)
    return result.reshape(shape) if result.numel() == 1 and result.dtype == value.dtype else None


def _filled(node: Any, shape: list[int], dtype: torch.dtype) -> torch.Tensor | None:
    packet = node.target.overloadpacket
    if packet in (aten.ones, aten.ones_like):
        number: Any = 1
    elif packet in (aten.zeros, aten.zeros_like):
        number = 0
    else:
        number = node.args[0] if packet is aten.scalar_tensor else node.args[1]
    return None if isinstance(number, Node) else torch.full(shape, number, dtype=dtype)


def _literal(source: Any, gm: GraphModule) -> torch.Tensor | None:
    """The number written in the program as `torch.tensor(2.0)`; parameters and buffers may change and are none."""
    if not isinstance(source, Node) or source.op != "get_attr" or not str(source.target).startswith(_LITERAL):
        return None
    value = getattr(gm, str(source.target))
    return value if type(value) is torch.Tensor and value.device.type == "cpu" and value.dim() == 0 else None


# The name that tracing gives to tensors made of literals.
_LITERAL = "_tensor_constant"


def _is_pointwise(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags and not is_random(node)


def _equal_numbers(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
