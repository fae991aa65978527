"""Peephole rules: what a single node may be replaced by, and the sweep that applies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from optpass.passes.aliases import Aliases
from optpass.passes.base import Pass, PassContext
from optpass.passes.meta import alike, fake_call, meta_difference

__all__ = ["Become", "Candidate", "Outcome", "Refuse", "Rule", "RulePass", "Use", "same_meta"]


@dataclass(frozen=True, slots=True)
class Use:
    """Another node holds the same value already."""

    value: Node


@dataclass(frozen=True, slots=True)
class Become:
    """The same value, dtype, shape and strides, computed otherwise."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refuse:
    """The node looks like a candidate, but this predicate failed."""

    reason: str


Outcome = Use | Become | Refuse | None

Candidate = Any
"""A `Node` of one of the rule's operations. FX lets arguments be nearly anything, the schema says more."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite of one node.

    Attributes:
        name: the rule's equation in words, `mul-one`.
        targets: the operations that it looks at.
        match: the outcome for a node of such an operation; `None` if it is no candidate.
    """

    name: str
    targets: tuple[Callable[..., Any], ...]
    match: Callable[[Candidate], Outcome]


class RulePass(Pass):
    """A pass that applies `rules` to each node, inputs before users, until none fires.

    The sweep keeps the alias rule (`Aliases`) for each `Use`, and checks on fake values that each `Become` keeps dtype,
    shape and strides; rules hold neither check.
    """

    rules: ClassVar[Sequence[Rule]]
    _by_target: ClassVar[dict[Any, list[Rule]]]

    def __init_subclass__(cls) -> None:
        cls._by_target = {}
        for rule in cls.rules:
            for target in rule.targets:
                cls._by_target.setdefault(target, []).append(rule)

    def run(self, gm: GraphModule, ctx: PassContext) -> None:
        aliases = Aliases(gm.graph)
        for node in list(gm.graph.nodes):
            while self._step(node, aliases, ctx):
                pass

    def _step(self, node: Node, aliases: Aliases, ctx: PassContext) -> bool:
        """Apply the first rule that fires; whether the node may have become a candidate for another."""
        for rule in self._by_target.get(node.target, ()):
            match rule.match(node):
                case Use(value):
                    refusal = aliases.refusal(node, value)
                    if refusal is not None:
                        ctx.decline(rule.name, node, refusal)
                    elif ctx.apply(rule.name, node):
                        aliases.replaced(node, value)
                        node.replace_all_uses_with(value)
                        node.graph.erase_node(node)
                        return False
                case Become(target, args, kwargs):
                    fresh, refusal = _try(node, target, args, kwargs, ctx)
                    if refusal is not None:
                        ctx.decline(rule.name, node, refusal)
                    elif ctx.apply(rule.name, node):
                        node.target, node.args, node.kwargs = target, args, dict(kwargs)
                        ctx.vouch(node, fresh)
                        return True
                case Refuse(reason):
                    ctx.decline(rule.name, node, reason)
        return False


def same_meta(a: Node, b: Node) -> bool:
    """Whether two nodes have tensors of the same dtype, shape, strides and device."""
    return isinstance(a.meta["val"], torch.Tensor) and alike(a.meta["val"], b.meta["val"])


def _try(
    node: Node, target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], ctx: PassContext
) -> tuple[Any, str | None]:
    """The fake value of another form of the node, and what is wrong with it."""
    try:
        fresh = fake_call(target, args, kwargs, ctx.fake_mode)
    except (RuntimeError, ValueError, IndexError) as error:
        return None, f"the new form is impossible: {error}"
    return fresh, meta_difference(node.meta["val"], fresh)
