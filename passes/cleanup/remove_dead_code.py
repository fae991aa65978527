"""Nodes that nobody reads."""

from __future__ import annotations

from typing import ClassVar

from torch.fx import GraphModule

from optpass.passes.base import Fact, Pass, PassContext
from optpass.passes.effects import has_effect, is_random

__all__ = ["RemoveDeadCode"]


class RemoveDeadCode(Pass):
    """Remove nodes whose results nobody reads and whose running nobody notices.

    Before:
        a = aten.exp.default(x)
        b = aten.sum.default(a)
        return x
    After:
        return x
    Holds when: the node has no users and no effect.
    Leaves alone: inputs, writes, assertions, effectful custom operators, higher-order operators, submodules, nodes that
        define a size; random operations under `parity="eager"`, because later random numbers depend on them.
    Numerics: exact, under `parity="fast"` up to the random numbers drawn.
    Source: ours.
    """

    name: ClassVar[str] = "remove-dead-code"
    needs: ClassVar[frozenset[Fact]] = frozenset()

    def run(self, gm: GraphModule, ctx: PassContext) -> None:
        for node in reversed(gm.graph.nodes):
            if node.users or has_effect(node) or "unbacked_bindings" in node.meta:
                continue
            if is_random(node) and ctx.options.parity == "eager":
                ctx.decline("dead", node, "it advances the random generator, and parity is eager")
            elif ctx.apply("dead", node):
                gm.graph.erase_node(node)
