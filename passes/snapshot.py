"""The state of a graph at one moment: taken in time linear in the nodes and cheap, restored only when a pass fails."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.fx import Graph, Node
from torch.fx.node import map_arg

from optpass.torch_private import graph_codegen

__all__ = ["NodeState", "Snapshot"]


class NodeState(NamedTuple):
    """One node's fields as they were; the arguments refer to the live nodes."""

    node: Node
    name: str
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    type: Any
    meta: dict[str, Any]

    def is_current(self) -> bool:
        """Whether target and arguments are untouched. By identity: ``1`` and ``1.0`` are equal and yet differ."""
        node = self.node
        return node.target is self.target and node.args is self.args and node.kwargs is self.kwargs

    def same_as(self, other: NodeState) -> bool:
        """Whether target and arguments are those of another state of the node."""
        return self.target is other.target and self.args is other.args and self.kwargs is other.kwargs

    def arguments(self) -> list[Node]:
        """The nodes among the arguments."""
        found: list[Node] = []
        map_arg((self.args, self.kwargs), found.append)
        return found


class Snapshot:
    """Every node's target, arguments and metadata, without copying the graph.

    A pass changes nodes in place. Recording references costs about a microsecond a node, a tenth of copying the graph,
    so that it is affordable before every pass.

    Attributes:
        states: each node's state, in graph order.
    """

    def __init__(self, graph: Graph) -> None:
        self._codegen = graph_codegen(graph)
        self.states: dict[Node, NodeState] = {
            n: NodeState(n, n.name, n.op, n.target, n.args, n.kwargs, n.type, dict(n.meta)) for n in graph.nodes
        }

    def get(self, node: Node) -> NodeState | None:
        """The node as it was, or `None` if it did not exist."""
        return self.states.get(node)

    def changed(self, graph: Graph) -> list[Node]:
        """Nodes of the graph that are new or have another target or other arguments, in graph order."""
        get = self.states.get
        return [n for n in graph.nodes if (state := get(n)) is None or not state.is_current()]

    def is_current(self, graph: Graph) -> bool:
        """Whether the graph is still the one recorded, node for node and in the same order."""
        return len(self.states) == len(graph.nodes) and all(
            node is state.node and state.is_current() for node, state in zip(graph.nodes, self.states.values())
        )

    def restore(self) -> Graph:
        """A new graph equal to the recorded one: same names, order and metadata."""
        graph, copies = Graph(), {}
        graph.set_codegen(self._codegen)
        for state in self.states.values():
            copy = graph.create_node(
                state.op,
                state.target,
                map_arg(state.args, copies.__getitem__),
                map_arg(state.kwargs, copies.__getitem__),
                state.name,
                state.type,
            )
            copy.meta = dict(state.meta)
            copies[state.node] = copy
        return graph
