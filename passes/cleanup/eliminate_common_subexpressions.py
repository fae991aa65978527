"""Equal computations."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from optpass.passes.aliases import Aliases
from optpass.passes.base import Pass, PassContext
from optpass.passes.effects import has_effect, is_random
from optpass.passes.meta import meta_difference

__all__ = ["EliminateCommonSubexpressions"]

aten = torch.ops.aten

# Not maximum and minimum: of +0.0 and -0.0 the CPU returns one by its place.
_COMMUTATIVE = frozenset(
    {aten.add.Tensor, aten.mul.Tensor, aten.eq.Tensor, aten.ne.Tensor}
    | {aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default}
    | {aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor}
)
# Their contents are whatever the allocator leaves.
_UNDEFINED = frozenset(
    {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default}
    | {aten.new_empty_strided.default, aten.empty_permuted.default}
)


class EliminateCommonSubexpressions(Pass):
    """Compute equal things once.

    Before:
        a = aten.add.Tensor(x, y)
        b = aten.add.Tensor(y, x)
        c = aten.mul.Tensor(a, b)
    After:
        a = aten.add.Tensor(x, y)
        c = aten.mul.Tensor(a, a)
    Holds when: operation and arguments are equal, numbers in type and sign of zero too, and nothing is written to the
        arguments in between.
    Leaves alone: random operations, writes and other effects, uninitialised tensors, two tensors that the caller gets
        separately, tensors that something writes to.
    Numerics: exact.
    Source: ours.
    """

    name: ClassVar[str] = "eliminate-common-subexpressions"
    exact: ClassVar[bool] = True

    def run(self, gm: GraphModule, ctx: PassContext) -> None:
        aliases = Aliases(gm.graph)
        first: dict[Hashable, Node] = {}
        writes = 0
        for node in list(gm.graph.nodes):
            if has_effect(node):
                writes += 1
                continue
            if is_random(node) or node.target in _UNDEFINED:
                continue
            reads_written = any(map(aliases.is_written, node.all_input_nodes))
            key = (_key(node), writes if reads_written else 0)
            other = first.setdefault(key, node)
            if other is not node:
                self._merge(node, other, aliases, ctx)

    def _merge(self, node: Node, other: Node, aliases: Aliases, ctx: PassContext) -> None:
        # Operands in another order may give other strides.
        refusal = meta_difference(node.meta.get("val"), other.meta.get("val")) or aliases.refusal(node, other)
        if refusal is not None:
            ctx.decline("equal", node, refusal)
        elif ctx.apply("equal", node):
            aliases.replaced(node, other)
            node.replace_all_uses_with(other)
            node.graph.erase_node(node)


def _key(node: Node) -> Hashable:
    args = _frozen(node.args)
    if node.target in _COMMUTATIVE and len(node.args) == 2 and not node.kwargs:
        args = (type(node.args), *sorted(args[1:], key=hash))
    return node.op, node.target, args, _frozen(node.kwargs)


def _frozen(value: Any) -> Any:
    """A hashable form that tells 1 from 1.0 and True, and 0.0 from -0.0."""
    if isinstance(value, (list, tuple)):
        return (list, *map(_frozen, value))
    if isinstance(value, dict):
        return (dict, *((name, _frozen(item)) for name, item in sorted(value.items())))
    if isinstance(value, slice):
        return (slice, _frozen(value.start), _frozen(value.stop), _frozen(value.step))
    if isinstance(value, float):
        return (float, value.hex())
    return (type(value), value) if isinstance(value, (bool, int)) else value
