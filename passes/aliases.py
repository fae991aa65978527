"""Which tensors of a graph share storage, and what may therefore stand in for what."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from optpass.passes.effects import storages_of, written_nodes
from optpass.torch_private import HigherOrderOperator, tree_leaves

__all__ = ["Aliases"]

aten = torch.ops.aten


class Aliases:
    """The alias rule: a tensor that callers got for themselves must stay theirs.

    Returning an input, or the same storage twice, where the traced program returned a copy lets the caller's next
    in-place operation corrupt something else. `refusal` says whether replacing a node could do that; `replaced` keeps
    the picture true after a replacement.
    """

    def __init__(self, graph: Graph) -> None:
        self._parents: dict[int, int] = {}
        self._returned = {leaf for leaf in tree_leaves(graph.output_node().args) if isinstance(leaf, Node)}
        self._escaping: set[int] = set()
        self._inputs: set[int] = set()
        self._written: set[int] = set()
        self._restrided: set[int] = set()
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._inputs |= storages_of(node)
            elif node.op == "call_function":
                # The body of a higher-order operator may write to what it is given.
                writes = node.all_input_nodes if isinstance(node.target, HigherOrderOperator) else written_nodes(node)
                for written in writes:
                    self._written |= storages_of(written)
                if node.target in _READ_WHOLE_STORAGE:
                    self._restrided |= storages_of(node.all_input_nodes[0])
        for node in self._returned:
            self._escaping |= storages_of(node)

    def same_storage(self, a: Node, b: Node) -> bool:
        """Whether the two nodes share storage now, replacements included."""
        return not self._roots(a).isdisjoint(self._roots(b))

    def is_written(self, node: Node) -> bool:
        """Whether anything writes to the node's storage, at any place in the graph."""
        return not self._roots(node).isdisjoint(self._written)

    def is_returned_twice(self, node: Node) -> bool:
        """Whether several outputs share the node's storage."""
        return sum(self.same_storage(node, output) for output in self._returned) > 1

    def refusal(self, node: Node, replacement: Node) -> str | None:
        """Why `replacement`, which holds the same values, must not stand in for `node`; `None` if it may."""
        if node in self._returned and (replacement in self._returned or replacement.op in ("placeholder", "get_attr")):
            return "it is returned as an object of its own"
        old, new = self._roots(node), self._roots(replacement)
        if old == new:
            return None
        if self.is_written(node) or self.is_written(replacement):
            return "its storage is written to"
        if not self._escaping.isdisjoint(old) and not (self._escaping | self._inputs).isdisjoint(new):
            return "it is returned and must not share storage with an input or another output"
        if not self._restrided.isdisjoint(old):
            return "its whole storage is read by as_strided"
        return None

    def replaced(self, node: Node, replacement: Node) -> None:
        """`replacement` now stands in for `node`."""
        if node in self._returned:
            self._returned.remove(node)
            self._returned.add(replacement)
        old, new = self._roots(node), self._roots(replacement)
        for storages in (self._escaping, self._inputs, self._written, self._restrided):
            if not storages.isdisjoint(old):
                storages |= new
        for root in old - new:
            self._parents[root] = next(iter(new), root)

    def _roots(self, node: Node) -> frozenset[int]:
        storages = storages_of(node)
        return frozenset(map(self._root, storages)) if self._parents else storages

    def _root(self, storage: int) -> int:
        while (parent := self._parents.get(storage, storage)) != storage:
            storage = parent
        return storage


_READ_WHOLE_STORAGE = frozenset({aten.as_strided.default, aten.as_strided_scatter.default})
