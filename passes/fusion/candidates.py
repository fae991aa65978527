"""Which nodes may enter a kernel, why the others may not, and which are evaluated anew wherever they are read."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch
from torch.fx import Graph, Node

from optpass.codegen import views
from optpass.codegen.emit import SUPPORTED
from optpass.codegen.lower import CASTS, REDUCTIONS, STRUCTURAL, is_getitem
from optpass.codegen.meta import is_printable, shape_of, to_expr
from optpass.codegen.pointwise import RULES
from optpass.codegen.reductions import is_reduction
from optpass.codegen.structural import GATHERS, GENERATORS
from optpass.codegen.target import Target
from optpass.passes.effects import has_effect, is_random
from optpass.passes.effects import is_view as is_alias

#: The most arithmetic (in `Rule.cost` units) that is repeated rather than stored.
CHEAP = 6


def tensors(value: object) -> list[torch.Tensor]:
    """The tensors in a node's value."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [v for v in value if isinstance(v, torch.Tensor)] if isinstance(value, list | tuple) else []


def numel(node: Node) -> sympy.Expr:
    return sympy.Mul(*shape_of(node))


def refusal(node: Node, target: Target) -> str | None:
    """Why a node cannot be computed inside a kernel; None if it can."""
    if node.op != "call_function":
        return f"{node.op} node"
    if has_effect(node) or is_random(node):
        return "it has an effect"
    known = node.target in RULES or node.target in CASTS or node.target in STRUCTURAL or node.target in REDUCTIONS
    if not known:
        return f"no kernel rule for {node.target}"
    results = tensors(node.meta.get("val"))
    if not results:
        return "its result is no tensor"
    arguments = [t for a in node.all_input_nodes for t in tensors(a.meta.get("val"))]
    for t in [*results, *arguments]:
        if t.layout != torch.strided or t.is_quantized or type(t).__name__ not in ("FakeTensor", "Tensor", "Parameter"):
            return "a tensor that is not plain strided memory"
        if t.dtype not in SUPPORTED or t.dtype in target.unsupported:
            return f"dtype {t.dtype}"
        if t.device.type != target.device:
            return f"a tensor on {t.device.type} in a kernel of {target.device}"
        if any(isinstance(s, int) and s == 0 for s in t.shape):
            return "an empty tensor"
        if not all(is_printable(to_expr(s)) for s in [*t.shape, *t.stride()]):
            return "a size that is no integer polynomial"
        if t.is_conj() or t.is_neg():
            return "a lazily conjugated or negated view"
    for t in results:
        if not is_dense(t):
            return "a result with gaps or overlaps in memory"
    if any(has_doubtful_strides(origin(a)) for a in node.all_input_nodes):
        return "an operand whose traced strides overlap, which no operator's result has"
    return None


def has_doubtful_strides(node: Node) -> bool:
    """Whether a node that makes new memory was traced with overlapping strides: some fake kernels copy an expanded
    operand's strides (`slice_scatter` in torch 2.11), where the operator's result is dense. Only ATen knows which."""
    return (
        node.op == "call_function"
        and any(
            isinstance(n, int) and n > 1 and isinstance(s, int) and s == 0
            for t in tensors(node.meta.get("val"))
            if t.layout == torch.strided
            for n, s in zip(t.shape, t.stride())
        )
        and not is_alias(node)
    )


def is_dense(t: torch.Tensor) -> bool:
    """Whether the strides are those of a dense tensor in some dimension order (so each element has its own place)."""
    if all(isinstance(s, int) for s in [*t.shape, *t.stride()]):
        expected = 1
        for stride, size in sorted((st, n) for st, n in zip(t.stride(), t.shape) if n != 1):
            if stride != expected:
                return False
            expected *= size
        return True
    return bool(t.is_contiguous()) if _contiguous_known(t) else False


def _contiguous_known(t: torch.Tensor) -> bool:
    expected = sympy.S.One
    for size, stride in zip(reversed(t.shape), reversed(t.stride())):
        if to_expr(size) != 1 and sympy.expand(to_expr(stride) - expected) != 0:
            return False
        expected = expected * to_expr(size)
    return True


def cost(node: Node) -> int:
    rule = RULES.get(node.target)
    return rule.cost if rule else 1


def origin(node: Node) -> Node:
    """The node whose memory a chain of views shows."""
    while views.is_view(node):
        node = views.viewed(node)
    return node


def producer(node: Node) -> Node:
    """The node that computes a value, looking through views and picks from several results."""
    node = origin(node)
    return producer(node.args[0]) if is_getitem(node) else node  # type: ignore[arg-type]


def readers(node: Node) -> Iterator[Node]:
    """Users that do something with the value, looking through views and result picks."""
    for user in node.users:
        if views.is_view(user) or (is_getitem(user) and not views.is_view(user)):
            yield from readers(user)
        else:
            yield user


def find_inlined(graph: Graph, fusible: set[Node]) -> set[Node]:
    """Fusible nodes that are evaluated anew in each kernel that reads them, and never stored.

    Generators; short pointwise chains over data in memory whose every reader is at least twice as large (a bias
    converted to float32, a mask built from two iotas); and a cheap single-use value read at moved positions (the
    negation inside a rotary embedding's cat).
    """
    inlined: set[Node] = set()
    effort: dict[Node, int] = {}
    for node in graph.nodes:
        if node not in fusible or is_reduction(node) or node.target in GATHERS:
            continue
        inputs = {origin(a) for a in node.all_input_nodes}
        if any(i in fusible and i not in inlined for i in inputs):
            continue
        effort[node] = cost(node) + sum(effort.get(i, 0) for i in inputs)
        users = list(readers(node))
        if not users or effort[node] > CHEAP or any(u not in fusible for u in users):
            continue
        if node.target in GENERATORS or _all_larger(node, users) or (len(node.users) == 1 and _moves(node)):
            inlined.add(node)
    return inlined


def _all_larger(node: Node, users: list[Node]) -> bool:
    size = numel(node)
    for user in users:
        result = user.args[0] if is_reduction(user) else user
        ratio = numel(result) / size  # type: ignore[arg-type]
        if not (ratio.is_Integer and ratio >= 2) and not (ratio.free_symbols and ratio.is_integer):
            return False
    return True


def _moves(node: Node) -> bool:
    """Whether the only user reads the value at other positions: a lossy view, cat, pad or a scatter of slices."""
    (user,) = node.users
    if views.is_view(user):
        return not views.is_bijective(user) and len(user.users) == 1
    return user.target in STRUCTURAL and user.target not in GENERATORS and user.target not in GATHERS
