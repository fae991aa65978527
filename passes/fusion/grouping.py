"""Decides which nodes share a kernel: one sweep in graph order that grows groups over a common iteration space.

A node joins the group of a value that it reads (or, for values in memory, of another reader) when its own result has a
place in that group's space: it varies along all axes, or along exactly those that the group's reductions leave. Groups
that meet in a node become one when their spaces align. Whatever joins saves the bytes between the two nodes; what stays
outside is read from memory. A union that would make the group graph cyclic is never made.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from optpass.codegen import views
from optpass.codegen.dims import Dim
from optpass.codegen.lower import is_getitem
from optpass.codegen.meta import is_tensor, normal_dim, shape_of
from optpass.codegen.reductions import is_reduction, reduced_dims, reduced_place
from optpass.codegen.structural import GATHERS, STRUCTURAL
from optpass.codegen.views import broadcast
from optpass.errors import UnsupportedOp
from optpass.passes.effects import has_effect, is_random, written_nodes
from optpass.passes.fusion.candidates import find_inlined, numel, origin, producer, readers
from optpass.passes.fusion.space import Place, Space, align, axes_of, fresh_axis

aten = torch.ops.aten

#: A group with more stored and read tensors than this grows no further: registers and pointer arguments are finite.
MAX_TENSORS = 24


@dataclass(eq=False)
class Group:
    """Nodes that become one kernel."""

    number: int
    space: Space
    nodes: list[Node] = field(default_factory=list)


class Grouping:
    """The sweep. After `run`, ``groups`` holds the groups in graph order.

    Args:
        fusible: nodes that kernels can compute.
        alone: fusible nodes that must have a kernel of their own.
    """

    def __init__(self, graph: Graph, fusible: set[Node], alone: set[Node]) -> None:
        self.graph, self.fusible, self.alone = graph, fusible, alone
        self.inlined = find_inlined(graph, fusible)
        self.group_of: dict[Node, Group] = {}
        self.unit: dict[Node, int] = {}  # node -> bit number of its group or of itself
        self.above: dict[int, int] = {}  # bit number -> bits of everything that it depends on
        self.numbers = itertools.count(1)

    def run(self) -> list[Group]:
        effects: list[Node] = []
        for node in self.graph.nodes:
            if node.op in ("placeholder", "get_attr", "output"):
                self._place_alone(node, [])
            elif node in self.inlined:
                continue
            elif node in self.fusible:
                self._place_fusible(node)
            elif views.is_view(node) or is_getitem(node):
                self.unit[node] = self.unit_of(node.args[0])  # type: ignore[arg-type]
            else:
                extra = list(effects)
                if has_effect(node) or is_random(node):
                    written = {origin(w) for w in written_nodes(node)}
                    extra += [r for w in written for r in self._seen_readers(w)]
                    effects.append(node)
                self._place_alone(node, extra)
        seen: dict[int, Group] = {}
        for node in self.graph.nodes:
            if node in self.group_of:
                seen.setdefault(self.group_of[node].number, self.group_of[node])
        return list(seen.values())

    # --- the dependency graph of groups ---------------------------------------------------------------------------

    def unit_of(self, node: Node) -> int:
        return self.unit.get(node, 0)

    def inputs(self, node: Node) -> list[Node]:
        """What a node reads from other units, looking through inlined nodes and views."""
        out: list[Node] = []
        for argument in node.all_input_nodes:
            if (source := producer(argument)) in self.inlined:
                out += self.inputs(source)
            else:
                out.append(source)
        return out

    def _seen_readers(self, node: Node) -> list[Node]:
        out = []
        for reader in readers(node):
            if reader in self.inlined:
                out += self._seen_readers(reader)
            elif reader in self.unit:
                out.append(reader)
        return out

    def _bits(self, nodes: Sequence[Node]) -> int:
        out = 0
        for n in nodes:
            number = self.unit_of(n)
            out |= (1 << number) | self.above.get(number, 0)
        return out

    def _place_alone(self, node: Node, extra: list[Node]) -> None:
        self.unit[node] = number = next(self.numbers)
        self.above[number] = self._bits([*self.inputs(node), *extra])

    def _depend(self, number: int, bits: int) -> None:
        """Adds dependencies of a unit and of everything that depends on it."""
        bits &= ~(1 << number)
        self.above[number] |= bits
        for other, above in self.above.items():
            if above >> number & 1:
                self.above[other] = above | bits

    # --- placing a node -------------------------------------------------------------------------------------------

    def _place_fusible(self, node: Node) -> None:
        if node not in self.alone:
            for group in self._candidates(node):
                if self._join(node, group):
                    return
        self._found(node)

    def _candidates(self, node: Node) -> list[Group]:
        """Groups of the values that the node reads, largest value first; then groups that read the same memory."""
        direct: dict[Group, int] = {}
        siblings: dict[Group, int] = {}
        for source in self.inputs(node):
            if not is_tensor(source) and not is_getitem(source) and source not in self.group_of:
                continue
            size = _hint(source)
            if source in self.group_of:
                direct[self.group_of[source]] = max(size, direct.get(self.group_of[source], 0))
            else:
                for reader in self._seen_readers(source):
                    if reader in self.group_of:
                        siblings.setdefault(self.group_of[reader], size)
        order = sorted(direct, key=lambda g: (-direct[g], -g.number))
        return [g for g in order if not self._is_closed(g)] + [
            g for g in sorted(siblings, key=lambda g: -g.number) if g not in direct and not self._is_closed(g)
        ][:4]

    def _is_closed(self, group: Group) -> bool:
        return any(n in self.alone for n in group.nodes) or len(group.space.reads) + len(group.nodes) // 4 > MAX_TENSORS

    def _join(self, node: Node, group: Group) -> bool:
        """Adds a node to a group if it has a place there and no cycle arises."""
        bit = 1 << group.number
        space = group.space.copy()
        merged: list[Group] = []
        try:
            placed = self._fit(node, space)
            if placed is None:
                return False
            for other in self._other_groups(node, group):
                if self._may_merge(group, other, merged) and self._merge(node, space, other):
                    merged.append(other)
        except UnsupportedOp:
            return False
        numbers = {g.number for g in (group, *merged)}
        outside = [s for s in self.inputs(node) if self.unit_of(s) not in numbers]
        inside = sum(1 << n for n in numbers)
        if self._bits(outside) & inside:
            return False
        if not self._worthwhile(node, group, space):
            return False
        for other in merged:
            self._absorb(group, other)
        group.space = space
        group.nodes.append(node)
        self.group_of[node] = group
        self.unit[node] = group.number
        self._depend(group.number, self._bits(outside) & ~bit)
        return True

    def _worthwhile(self, node: Node, group: Group, space: Space) -> bool:
        """A reduction over outer axes joins its producers only if nothing else reads them: walking columns is slow."""
        if not is_reduction(node) or group.space.reduced is not None:
            return True
        place = space.places[f"{node.name}.input"]
        last = next((dim for dim in reversed(place) if dim), ())
        if not last or last[-1][0] in (space.reduced or ()):
            return True
        inside = {*group.nodes, node}
        return all(r in inside for n in group.nodes for r in readers(n))

    def _found(self, node: Node) -> None:
        group = self.solo(node)
        self.above[group.number] = self._bits(self.inputs(node))
        self.group_of[node] = group
        self.unit[node] = group.number

    def solo(self, node: Node) -> Group:
        """A group of one node, with axes of its own."""
        space = Space()
        if is_reduction(node):
            source: Node = node.args[0]  # type: ignore[assignment]
            place: Place = tuple(fresh_axis(s) for s in shape_of(source))
            space.add_axes(place)
            space.places[f"{node.name}.input"] = place
            space.reduced = _axes_at(place, reduced_dims(node))
            space.places[node.name] = tuple(reduced_place(node, place))
            self._settle(source, place, space)
            self._note_reads(node, space, {source: space.places[f"{node.name}.input"]})
        else:
            place = tuple(fresh_axis(s) for s in shape_of(node))
            space.add_axes(place)
            space.places[node.name] = place
            self._note_operand_reads(node, space, place)
        return Group(next(self.numbers), space, [node])

    # --- places ---------------------------------------------------------------------------------------------------

    def _fit(self, node: Node, space: Space) -> Place | None:
        """Gives the node a place in the space, or returns None."""
        if is_reduction(node):
            return self._fit_reduction(node, space)
        if node.target in GATHERS:
            return self._fit_gather(node, space)
        if node.target in STRUCTURAL:
            return None  # cat, pad and scatters read their arguments at moved positions
        shape = shape_of(node)
        place = self._operand_place(node, space)
        if place is None:
            return None
        complete = self._complete(place, shape, space)
        if complete is None or not space.covers(complete):
            return None
        space.places[node.name] = complete
        self._note_operand_reads(node, space, complete)
        return space.places[node.name]

    def _operand_place(self, node: Node, space: Space) -> list[Dim | None] | None:
        """The place that the arguments computed in the space (else, read alike) give to a pointwise node."""
        shape, axes = shape_of(node), None
        while axes != set(space.axes):  # looking through a reshape may split axes: then look again
            axes, computed, read = set(space.axes), [], []
            for argument in filter(is_tensor, node.all_input_nodes):
                known = self._place_of(argument, space)
                if known is not None:
                    computed.append(_spread(known, shape_of(argument), shape))
                elif producer(argument).name in space.places:
                    return None  # computed in this very kernel, but needed at moved positions
                elif argument.name in space.reads:
                    read.append(_spread(space.reads[argument.name], shape_of(argument), shape))
        return _agree(computed or read[:1], shape)

    def _fit_reduction(self, node: Node, space: Space) -> Place | None:
        source: Node = node.args[0]  # type: ignore[assignment]
        if not is_tensor(source):
            return None
        place = self._place_of(source, space) or space.reads.get(source.name)
        if place is None or any(d is None for d in place):
            return None
        if axes_of(place) != frozenset(space.axes):  # type: ignore[arg-type]
            return None
        folded = _axes_at(place, reduced_dims(node))  # type: ignore[arg-type]
        if space.reduced is not None and space.reduced != folded:
            return None
        space.reduced = folded
        result = tuple(reduced_place(node, place))  # type: ignore[arg-type]
        space.places[f"{node.name}.input"] = place  # type: ignore[assignment]
        space.places[node.name] = result
        if not all(space.covers(p) for p in space.places.values()):
            return None
        return result

    def _fit_gather(self, node: Node, space: Space) -> Place | None:
        """A gather of one element a row (the target's log-probability) is evaluated anew at that one element."""
        if node.target is not aten.gather.default or space.reduced is None:
            return None
        source, dim, index = node.args[:3]
        place = self._place_of(source, space)  # type: ignore[arg-type]
        if not place or any(d is None for d in place) or producer(index).name in space.places:  # type: ignore[arg-type]
            return None
        dim = normal_dim(dim, len(place))  # type: ignore[arg-type]
        shape, wanted = list(shape_of(source)), list(shape_of(index))  # type: ignore[arg-type]
        if (
            len(wanted) != len(shape)
            or wanted[dim] != 1
            or shape[:dim] + shape[dim + 1 :] != wanted[:dim] + wanted[dim + 1 :]
        ):
            return None
        result = tuple(() if d == dim else p for d, p in enumerate(place))
        if axes_of(result) != frozenset(space.axes) - space.reduced:
            return None
        space.places[node.name] = result
        return result

    def _place_of(self, argument: Node, space: Space) -> list[Dim | None] | None:
        """Where an argument computed in the space lies; dims that it is expanded along are None."""
        if argument.name in space.places:
            return list(space.places[argument.name])
        if is_getitem(argument) and not views.is_view(argument):
            return self._place_of(argument.args[0], space)  # type: ignore[arg-type]
        if not views.is_view(argument):
            return None
        inner = self._place_of(views.viewed(argument), space)
        return None if inner is None else self._pushed(argument, inner, space)

    def _pushed(self, view: Node, inner: list[Dim | None], space: Space) -> list[Dim | None] | None:
        if view.target is aten.expand.default:
            return _spread(inner, shape_of(views.viewed(view)), shape_of(view))
        if not views.is_bijective(view):
            return None
        if view.target not in views.RESHAPES:
            return list(views.push(view, inner))  # type: ignore[arg-type]
        if any(d is None for d in inner):
            return None
        out = space.regrouped(inner, shape_of(view))  # type: ignore[arg-type]
        return None if out is None else list(out)

    def _settle(self, argument: Node, dims: Sequence[Dim], space: Space) -> None:
        """Splits axes where reshapes between an argument and its memory cut them, so that no index divides."""
        while views.is_view(argument):
            source = views.viewed(argument)
            if argument.target in views.RESHAPES:
                inner = space.regrouped(dims, shape_of(source))
                if inner is None:
                    return
                dims = inner
            else:
                try:
                    _, dims = views.source(argument, dims)
                except UnsupportedOp:  # the view is made by ATen, and the kernel reads its result
                    return
            argument = source

    def _note_operand_reads(self, node: Node, space: Space, place: Place) -> None:
        shape = shape_of(node)
        if node.target not in STRUCTURAL:
            for a in filter(is_tensor, node.all_input_nodes):
                self._settle(a, broadcast(space.places[node.name], shape_of(a)), space)
            place = space.places[node.name]
        same = [a for a in node.all_input_nodes if is_tensor(a) and shape_of(a) == shape]
        self._note_reads(node, space, dict.fromkeys(same, place) if node.target not in STRUCTURAL else {})

    def _note_reads(self, node: Node, space: Space, places: dict[Node, Place]) -> None:
        for argument, place in places.items():
            if argument.name not in space.places and space.covers(place):
                space.reads.setdefault(argument.name, place)

    def _complete(self, place: list[Dim | None], shape: Sequence, space: Space) -> Place | None:
        """Fills dims that no argument fixes with the axes that are left, as a broadcast over a row does."""
        free = [d for d, dim in enumerate(place) if dim is None]
        if not free:
            return tuple(place)  # type: ignore[arg-type]
        used = axes_of([d for d in place if d is not None])
        left = space.ordered(frozenset(space.axes) - used)
        sizes = [shape[d] for d in free]
        before = dict(space.axes)
        dims = space.regrouped([left], sizes)
        if dims is None or before.keys() != space.axes.keys():
            return None
        out = list(place)
        for d, dim in zip(free, dims):
            out[d] = dim
        return tuple(out)  # type: ignore[arg-type]

    # --- merging groups -------------------------------------------------------------------------------------------

    def _other_groups(self, node: Node, group: Group) -> list[Group]:
        others = dict.fromkeys(self.group_of[s] for s in self.inputs(node) if s in self.group_of)
        return [g for g in others if g is not group and not self._is_closed(g)]

    def _may_merge(self, group: Group, other: Group, merged: list[Group]) -> bool:
        """Whether neither group depends on the other: what one reads of the other from memory is no register."""
        both = [group, *merged, other]
        bits = sum(1 << g.number for g in both)
        return not any(self.above[g.number] & bits for g in both)

    def _merge(self, node: Node, space: Space, other: Group) -> bool:
        """Aligns another group's space with this one through the node's arguments; changes ``space`` if it works."""
        trial, theirs = space.copy(), other.space.copy()
        shape = shape_of(node)
        if is_reduction(node) or node.target in STRUCTURAL:
            return False
        for argument in node.all_input_nodes:
            if not is_tensor(argument):
                continue
            known = self._place_of(argument, theirs)
            if known is None:
                if producer(argument).name in theirs.places:
                    return False
                continue
            spread = _spread(known, shape_of(argument), shape)
            if not align(trial, list(trial.places[node.name]), theirs, spread):
                return False
        if not set(theirs.axes) <= set(trial.axes):
            return False
        if trial.reduced is not None and theirs.reduced is not None and trial.reduced != theirs.reduced:
            return False
        trial.reduced = trial.reduced if trial.reduced is not None else theirs.reduced
        trial.places = {**theirs.places, **trial.places}
        trial.reads = {**theirs.reads, **trial.reads}
        if not all(trial.covers(p) for p in trial.places.values()):
            return False
        space.axes, space.reduced, space.places, space.reads = trial.axes, trial.reduced, trial.places, trial.reads
        return True

    def _absorb(self, group: Group, other: Group) -> None:
        for n in other.nodes:
            self.group_of[n] = group
            self.unit[n] = group.number
        group.nodes = other.nodes + group.nodes
        gone, kept = 1 << other.number, 1 << group.number
        bits = (self.above.pop(other.number) | self.above[group.number]) & ~gone & ~kept
        self.above[group.number] = bits
        for number, above in self.above.items():
            if above & gone:
                self.above[number] = (above & ~gone) | kept | bits
            elif above & kept:
                self.above[number] = above | bits
        for node, number in self.unit.items():
            if number == other.number:
                self.unit[node] = group.number


def _hint(node: Node) -> int:
    if not is_tensor(node):
        return 1
    size = numel(node)
    return int(size) if size.is_Integer else 1 << 20


def _axes_at(place: Place, dims: Sequence[int]) -> frozenset:
    return frozenset(s for d in dims for s, _ in place[d])


def _spread(place: Sequence[Dim | None], shape: Sequence, onto: Sequence) -> list[Dim | None]:
    """A place broadcast to a larger shape: new and stretched dims are free."""
    lead = len(onto) - len(shape)
    out: list[Dim | None] = [None if onto[d] != 1 else () for d in range(lead)]
    for d, size in enumerate(shape):
        out.append(None if size == 1 and onto[lead + d] != 1 else place[d])
    return out


def _agree(places: list[list[Dim | None]], shape: Sequence) -> list[Dim | None] | None:
    """The common refinement of several arguments' places; None where two contradict each other or there are none."""
    if not places:
        return None
    out: list[Dim | None] = [() if s == 1 else None for s in shape]
    for place in places:
        for d, dim in enumerate(place):
            if shape[d] == 1 or dim is None:
                continue
            if out[d] is not None and out[d] != dim:
                return None
            out[d] = dim
    return out
