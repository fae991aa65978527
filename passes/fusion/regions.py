"""Cuts groups out of a graph: each becomes a sub-module ``fused_k`` called where its nodes stood."""

from __future__ import annotations

import heapq
import operator
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

from optpass.codegen import views
from optpass.codegen.dims import single
from optpass.codegen.expr import axis_symbol
from optpass.codegen.ir import Axis
from optpass.codegen.lower import Domain, is_getitem
from optpass.codegen.meta import shape_of
from optpass.codegen.target import Target
from optpass.errors import UnsupportedOp
from optpass.passes.effects import has_effect, is_random, written_nodes
from optpass.passes.fusion.candidates import origin, readers
from optpass.passes.fusion.grouping import Group
from optpass.passes.fusion.space import Place, renamed


@dataclass(frozen=True)
class Region:
    """One group as a graph of its own.

    Attributes:
        module: placeholders, the group's nodes with the views and inlined nodes that they read, one output tuple.
        arguments: the outer nodes bound to the placeholders, in order.
        members: the group's nodes.
        stored: the group's nodes that the rest of the graph reads, in the order of the outputs.
        domain: where they lie in the kernel.
    """

    module: GraphModule
    arguments: tuple[Node, ...]
    members: tuple[Node, ...]
    stored: tuple[Node, ...]
    domain: Domain


def cut(group: Group, inlined: set[Node], target: Target, order: dict[Node, int]) -> Region:
    """The region of a group. The graph itself is left as it is."""
    graph, inside = Graph(), set(group.nodes)
    copies: dict[Node, Node] = {}
    arguments: list[Node] = []

    def copy(node: Node) -> Node:
        if node not in copies:
            if node in inside or node in inlined or _is_readable_view(node) or _picks(node, inside):
                new = graph.node_copy(node, copy)
            else:
                new = graph.placeholder(f"arg{len(arguments)}")
                new.meta = {k: node.meta[k] for k in ("val", "stack_trace") if k in node.meta}
                arguments.append(node)
            copies[node] = new
        return copies[node]

    stored = []
    for node in sorted(inside, key=order.__getitem__):
        copy(node)
        stored += _stored_results(node, inside)
    outputs = [copy(n) for n in stored]
    graph.output(tuple(outputs))
    _hoist_placeholders(graph)
    names = {new.name: old.name for old, new in copies.items()}
    module = GraphModule(torch.nn.Module(), graph)
    return Region(module, tuple(arguments), tuple(group.nodes), tuple(stored), _domain(group, names, outputs, target))


def _stored_results(node: Node, inside: set[Node]) -> list[Node]:
    """What of a node's result others read: itself, or the picks of an operator with several results."""
    if isinstance(node.meta["val"], torch.Tensor):
        return [node] if any(r not in inside for r in readers(node)) else []
    picks = [u for u in node.users if is_getitem(u)]
    return [p for p in picks if any(r not in inside for r in readers(p))]


def _picks(node: Node, inside: set[Node]) -> bool:
    return is_getitem(node) and node.args[0] in inside


def _is_readable_view(node: Node) -> bool:
    """Whether kernels can read through the view: its index map exists (tried on stand-in axes)."""
    if node.op == "call_function" and any(views.is_view(u) and views.viewed(u) is not node for u in node.users):
        return True  # a split whose pieces are read
    if not views.is_view(node):
        return False
    try:
        views.source(node, [single(axis_symbol(f"r{d}"), s) for d, s in enumerate(shape_of(node))])
    except UnsupportedOp:
        return False
    return True


def _hoist_placeholders(graph: Graph) -> None:
    for node in reversed([n for n in graph.nodes if n.op == "placeholder"]):
        first = next(iter(graph.nodes))
        if node is not first:
            first.prepend(node)


def _domain(group: Group, names: dict[str, str], outputs: list[Node], target: Target) -> Domain:
    space = group.space
    canonical, rows, cols = renamed(space)
    move = lambda place: tuple(tuple((canonical[s], n) for s, n in dim) for dim in place)
    places: dict[str, Place] = {}
    for new, old in names.items():
        for suffix in ("", ".input"):
            if old + suffix in space.places:
                places[new + suffix] = move(space.places[old + suffix])
    for node in outputs:
        if is_getitem(node):
            places[node.name] = places[node.args[0].name]  # type: ignore[union-attr]
    axes = lambda symbols: tuple(Axis(canonical[s], space.axes[s]) for s in symbols)
    return Domain(axes(rows), axes(cols), places, _stays_on_chip(group, target))


def _stays_on_chip(group: Group, target: Target) -> bool:
    """Whether the reduced axes are the fastest in memory and a row of them fits the target's near memory."""
    space = group.space
    if not space.reduced:
        return True
    size = 4
    for s in space.reduced:
        size = size * space.axes[s]
    if size.is_Integer and size > target.row_bytes:
        return False
    inputs = [p for name, p in space.places.items() if name.endswith(".input")]
    last = next((dim for dim in reversed(inputs[0]) if dim), ())
    return bool(last) and last[-1][0] in space.reduced


def rebuild(gm: GraphModule, regions: list[Region], order: dict[Node, int]) -> None:
    """Gives ``gm`` a graph in which each region is one call of a sub-module; effects keep their order."""
    graph, env = Graph(), {}
    owner: dict[Node, Region] = {n: r for r in regions for n in r.stored}
    names: dict[int, str] = {}
    for region in regions:
        names[id(region)] = f"fused_{len(names)}"
        gm.add_module(names[id(region)], region.module)

    def emit(unit: Node | Region) -> None:
        if isinstance(unit, Node):
            env[unit] = graph.node_copy(unit, env.__getitem__)
            return
        call = graph.call_module(names[id(unit)], tuple(env[a] for a in unit.arguments))
        call.meta = {"val": tuple(n.meta["val"] for n in unit.stored)}
        if (trace := unit.stored[-1].meta.get("stack_trace")) is not None:
            call.meta["stack_trace"] = trace
        for k, node in enumerate(unit.stored):
            env[node] = graph.call_function(operator.getitem, (call, k), name=node.name)
            env[node].meta = dict(node.meta)

    for unit in _in_order(gm.graph, regions, owner, order):
        emit(unit)
    gm.graph = graph


def _in_order(graph: Graph, regions: list[Region], owner: dict[Node, Region], order: dict[Node, int]):
    """Needed nodes and regions in dependency order, as close to the graph's order as that allows."""
    needed: set[int] = set()
    units: dict[int, Node | Region] = {}
    below: dict[int, set[int]] = {}

    def unit(node: Node) -> Node | Region:
        return owner.get(node, node)

    def visit(start: Node | Region) -> None:
        stack = [start]
        while stack:
            u = stack.pop()
            if id(u) in needed:
                continue
            needed.add(id(u))
            units[id(u)] = u
            inputs = u.arguments if isinstance(u, Region) else u.all_input_nodes
            below[id(u)] = {id(unit(i)) for i in inputs}
            stack += [unit(i) for i in inputs]

    roots = [n for n in graph.nodes if n.op in ("placeholder", "output") or has_effect(n) or is_random(n)]
    for node in roots:
        visit(unit(node))
    _order_effects(graph, units, below, owner)
    first = lambda u: min(order[n] for n in u.stored) if isinstance(u, Region) else order[u]
    last = lambda u: max(order[n] for n in u.stored) if isinstance(u, Region) else order[u]
    waiting = {k: len(v) for k, v in below.items()}
    above: dict[int, list[int]] = {}
    for k, inputs in below.items():
        for i in inputs:
            above.setdefault(i, []).append(k)
    ready = [(last(units[k]), first(units[k]), k) for k, n in waiting.items() if n == 0]
    heapq.heapify(ready)
    while ready:
        *_, k = heapq.heappop(ready)
        yield units[k]
        for a in above.get(k, ()):
            waiting[a] -= 1
            if waiting[a] == 0:
                heapq.heappush(ready, (last(units[a]), first(units[a]), a))


def _order_effects(graph: Graph, units: dict, below: dict[int, set[int]], owner: dict[Node, Region]) -> None:
    """Effects stay in order, and a write comes after everything that reads the old value."""
    before: Node | None = None
    readers_of: dict[Node, set[int]] = {}
    for u in units.values():
        inputs = u.arguments if isinstance(u, Region) else u.all_input_nodes
        for i in inputs:
            readers_of.setdefault(origin(i), set()).add(id(u))
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or not (has_effect(node) or is_random(node)):
            continue
        mine = below[id(node)]
        if before is not None:
            mine.add(id(before))
        for written in written_nodes(node):
            late = {id(node)} | _after(node, below)
            mine |= readers_of.get(origin(written), set()) - late
        before = node


def _after(node: Node, below: dict[int, set[int]]) -> set[int]:
    """Units that depend on a node."""
    out, grew = {id(node)}, True
    while grew:
        more = {k for k, inputs in below.items() if k not in out and inputs & out}
        out, grew = out | more, bool(more)
    return out
