"""Bytes moved and floating-point operations of nodes and graphs, by metadata; symbolic sizes count by their hints."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from optpass.passes.effects import is_view
from optpass.torch_private import OpOverload, flop_registry, optimization_hint

__all__ = ["Cost", "graph_cost", "node_cost", "tensor_bytes", "total_cost"]

aten = torch.ops.aten

# Operations that read only the rows that their index names, not the whole of their first argument.
_GATHERS = frozenset({aten.embedding, aten.gather, aten.index, aten.index_select, aten.take})
# Operations that move or make data and compute nothing.
_MOVES = _GATHERS | {
    aten._to_copy,
    aten.cat,
    aten.clone,
    aten.constant_pad_nd,
    aten.copy,
    aten.copy_,
    aten.empty,
    aten.empty_strided,
    aten.flip,
    aten.full,
    aten.repeat,
    aten.roll,
    aten.scalar_tensor,
    aten.stack,
}


class Cost(NamedTuple):
    """Work of nodes, each run on its own: bytes read and written, floating-point operations."""

    bytes: int
    flops: int


def node_cost(node: Node) -> Cost:
    """What one eager call of the node reads, writes and computes.

    Each tensor argument is read once and each result written once; views and tuple access are free; an expanded tensor
    counts for the elements that it stores. A multiply-add counts as two FLOPs; an operation other than matrix products,
    convolutions and attention counts one for each element of the largest tensor that it touches.
    """
    if node.op not in ("call_function", "call_module") or node.target is operator.getitem or is_view(node):
        return Cost(0, 0)
    value = node.meta.get("val")
    written = tensor_bytes(value)
    read = [tensor_bytes(argument.meta.get("val")) for argument in node.all_input_nodes]
    if isinstance(node.target, OpOverload) and node.target.overloadpacket in _GATHERS and read:
        read[0] = min(read[0], written)
    return Cost(sum(read) + written, _flops(node, value))


def total_cost(nodes: Iterable[Node]) -> Cost:
    """Sum over the nodes."""
    costs = [node_cost(node) for node in nodes]
    return Cost(sum(cost.bytes for cost in costs), sum(cost.flops for cost in costs))


def graph_cost(graph: Graph) -> Cost:
    """Work of the whole graph, run node by node."""
    return total_cost(graph.nodes)


def tensor_bytes(value: Any) -> int:
    """Bytes that the tensors in a node's `meta["val"]` store; an expanded dimension counts once."""
    if isinstance(value, (list, tuple)):
        return sum(map(tensor_bytes, value))
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return 0
    count = value.element_size()
    for size, stride in zip(value.shape, value.stride()):
        size = optimization_hint(size, 1)
        count *= size if size == 0 or isinstance(stride, torch.SymInt) or stride != 0 else 1
    return count


def _shape(value: Any) -> Any:
    """Tensors become tuples of plain integers, symbolic numbers their hints: the arguments of a FLOP formula."""
    if isinstance(value, Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return tuple(optimization_hint(size, 1) for size in value.shape)
    if isinstance(value, (list, tuple)):
        return [_shape(item) for item in value]
    return optimization_hint(value, 1) if isinstance(value, torch.SymInt) else value


def _flops(node: Node, value: Any) -> int:
    if not isinstance(node.target, OpOverload) or node.target.overloadpacket in _MOVES:
        return 0
    formula = _formulas().get(node.target.overloadpacket)
    if formula is not None:
        args, kwargs = _shape(node.args), {name: _shape(item) for name, item in node.kwargs.items()}
        # A few formulas want tensors or fixed ranks; their operations count as pointwise.
        with contextlib.suppress(AttributeError, AssertionError, TypeError, ValueError):
            return int(formula(*args, **kwargs, out_val=_shape(value)))
    tensors = (value, *(argument.meta.get("val") for argument in node.all_input_nodes))
    return max((math.prod(_shape(tensor)) for tensor in tensors if isinstance(tensor, torch.Tensor)), default=0)


@functools.cache
def _formulas() -> dict[Any, Callable[..., int]]:
    def linear(x: tuple[int, ...], weight: tuple[int, ...], *_: Any, out_val: Any) -> int:
        return 2 * math.prod(x) * (weight[0] if len(weight) == 2 else 1)

    def matmul(a: tuple[int, ...], b: tuple[int, ...], *, out_val: tuple[int, ...]) -> int:
        return 2 * math.prod(out_val) * a[-1]

    attention = flop_registry[aten._scaled_dot_product_flash_attention]
    return {
        **flop_registry,
        aten.linear: linear,
        aten.matmul: matmul,
        aten.scaled_dot_product_attention: attention,
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
    }
