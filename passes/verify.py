"""Checks of a graph after a pass: well-formed, facts kept, and the contract of its outputs unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from optpass.errors import VerifyError
from optpass.passes.base import Fact, Stage
from optpass.passes.effects import storages_of, written_nodes
from optpass.passes.meta import meta_difference
from optpass.torch_private import tree_leaves

__all__ = ["Contract", "check_structure", "missing_fact"]

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Contract:
    """What callers of a graph rely on.

    Attributes:
        inputs: names of the placeholders.
        outputs: fake values of the outputs, `None` where an output is no node.
        constants: the outputs that are no nodes.
        objects: for each output, the first place (input or earlier output) that holds the very same object.
        aliases: for each output, the first place whose storage it shares; a constant of the graph is a place as well.
        writes: the inputs written to, in order.
    """

    inputs: tuple[str, ...]
    outputs: tuple[Any, ...]
    constants: tuple[Any, ...]
    objects: tuple[str, ...]
    aliases: tuple[str, ...]
    writes: tuple[str, ...]

    @classmethod
    def of(cls, graph: Graph) -> Contract:
        """Read the contract off the graph's metadata, which must be true."""
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        places: dict[int, str] = {}
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                for storage in storages_of(node):
                    places.setdefault(storage, f"{node.op} {node.target}")
        holders = {node: f"placeholder {node.target}" for node in placeholders}
        writes = tuple(
            place
            for node in graph.nodes
            for written in written_nodes(node)
            for storage in storages_of(written)
            if (place := places.get(storage)) is not None
        )
        outputs = _outputs(graph)
        objects, aliases = [], []
        for index, output in enumerate(outputs):
            if isinstance(output, Node):
                objects.append(holders.setdefault(output, f"output {index}"))
                aliases += [places.setdefault(storage, f"output {index}") for storage in sorted(storages_of(output))]
        return cls(
            inputs=tuple(node.name for node in placeholders),
            outputs=tuple(o.meta.get("val") if isinstance(o, Node) else None for o in outputs),
            constants=tuple(None if isinstance(o, Node) else o for o in outputs),
            objects=tuple(objects),
            aliases=tuple(aliases),
            writes=writes,
        )

    def check(self, graph: Graph) -> None:
        """Raise `VerifyError` if the graph's contract is not this one."""
        now = Contract.of(graph)
        if self.inputs != now.inputs:
            raise VerifyError(f"inputs changed from {self.inputs} to {now.inputs}")
        if len(self.outputs) != len(now.outputs) or self.constants != now.constants:
            raise VerifyError(f"the graph returned {len(self.outputs)} outputs and now returns {now.constants}")
        for index, (old, new) in enumerate(zip(self.outputs, now.outputs)):
            if difference := meta_difference(old, new):
                raise VerifyError(f"output {index} changed: {difference}")
        for what, old, new in (
            ("outputs share storage with other places", self.aliases, now.aliases),
            ("outputs are the same object as other places", self.objects, now.objects),
            ("writes to inputs changed", self.writes, now.writes),
        ):
            if old != new:
                raise VerifyError(f"{what}: {_first_difference(old, new)}")


def check_structure(gm: GraphModule, stage: Stage) -> None:
    """Raise `VerifyError` if the graph is malformed or holds a kind of node that the stage does not allow."""
    try:
        gm.graph.lint()
    except (RuntimeError, ValueError) as error:
        raise VerifyError(f"the graph is malformed: {error}") from error
    for node in gm.graph.nodes:
        if node.op == "call_method" or (node.op == "call_module" and stage is not Stage.FUSION):
            raise VerifyError(f"a {node.op} node is not allowed in the {stage} stage", where=node.format_node())


def missing_fact(graph: Graph, needs: frozenset[Fact]) -> str | None:
    """The first needed fact that does not hold, with the node that breaks it, or `None`."""
    for fact in Fact:
        if fact in needs and (node := _CHECKERS[fact](graph)) is not None:
            return f"needs {fact.name}: {fact.value}; node {node.name} breaks it"
    return None


def _breaks_functional(graph: Graph) -> Node | None:
    for node in graph.nodes:
        for written in written_nodes(node):
            if node.target is not aten.copy_.default or written.op != "placeholder":
                return node
    return None


def _breaks_values(graph: Graph) -> Node | None:
    return next((n for n in graph.nodes if n.op in ("placeholder", "call_function") and "val" not in n.meta), None)


_CHECKERS: dict[Fact, Callable[[Graph], Node | None]] = {
    Fact.FUNCTIONAL: _breaks_functional,
    Fact.VALUES: _breaks_values,
}


def _outputs(graph: Graph) -> list[Any]:
    return tree_leaves(graph.output_node().args[0])


def _first_difference(old: tuple[str, ...], new: tuple[str, ...]) -> str:
    for index, (a, b) in enumerate(zip(old, new)):
        if a != b:
            return f"place {index} was {a} and is {b}"
    return f"{old} became {new}"
