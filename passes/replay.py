"""Replay of a single rewrite: the graph before against the graph after, on adversarial values.

Only the part of the graph that the rewrite can have changed runs. It ends at the nodes that existed before and now have
other arguments, whose values must be the same. It begins at the graph's inputs or, in a large graph, at unchanged nodes
a few operations upstream, which are given made-up values of their own shape and strides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from optpass.passes.adversarial import Trial, trials
from optpass.passes.effects import written_nodes
from optpass.passes.snapshot import NodeState, Snapshot
from optpass.report import Rewrite
from optpass.torch_private import tree_leaves

__all__ = ["Disagreement", "RewriteCheck"]

WHOLE_GRAPH_NODES = 200
"""Graphs up to this size are replayed from their inputs."""
UPSTREAM_LEVELS = 5
"""Of a larger graph, so many operations before each changed one are replayed too: about as far as rules look back."""


class Disagreement(Exception):
    """The graph computes other values after a rewrite than before."""

    def __init__(self, rewrite: Rewrite, reason: str) -> None:
        self.rewrite, self.reason = rewrite, reason
        super().__init__(f"rewrite {rewrite.number} ({rewrite.rule} at {', '.join(rewrite.nodes)}): {reason}")


class RewriteCheck:
    """Called with each complete rewrite of one run of a pass; raises `Disagreement`.

    Args:
        gm: the module that the pass changes.
        before: its graph before the first rewrite.
        exact: whether the pass claims the same bits.
        checked: number of the last rewrite that an earlier run of the pass has shown to be right or has refused.
    """

    def __init__(self, gm: GraphModule, before: Snapshot, *, exact: bool, checked: int) -> None:
        self._gm, self._before, self._exact, self._checked = gm, before, exact, checked

    def __call__(self, rewrite: Rewrite) -> None:
        before, self._before = self._before, Snapshot(self._gm.graph)
        if rewrite.number <= self._checked:
            return
        region = _Region(before, self._before)
        with torch.random.fork_rng():
            for trial in trials(list(region.inputs.values()), exact=self._exact):
                reason = self._trial(region, trial)
                if reason is not None:
                    raise Disagreement(rewrite, reason)

    def _trial(self, region: _Region, trial: Trial) -> str | None:
        for wide in (False,) if self._exact or trial.scenario != "ordinary" else (False, True):
            try:
                old = self._run(region.before, region, trial, wide)
            except Exception:  # made-up values that the graph before does not accept either say nothing
                continue
            try:
                new = self._run(region.after, region, trial, wide)
            except Exception as error:
                if wide:  # a fused operation may exist in half precision only
                    continue
                return f"it raises {type(error).__name__} on {trial.scenario} values: {error}"
            for before, after in region.pairs:
                difference = _difference(_look_up(before, old), _look_up(after, new), exact=self._exact)
                if difference is not None:
                    return f"{before} differs on {trial.scenario} values: {difference}"
        return None

    def _run(self, version: Mapping[Node, NodeState], region: _Region, trial: Trial, wide: bool) -> dict[Node, Any]:
        """The values of the region's nodes in one version of the graph; in float64 if `wide`."""
        torch.manual_seed(0)
        values = {
            node: _widened(trial.value(fake, place), wide) for place, (node, fake) in enumerate(region.inputs.items())
        }
        for node, state in version.items():
            if node in region.members and node not in values and state.op != "output":
                values[node] = self._compute(state, values, wide)
        return values

    def _compute(self, state: NodeState, values: Mapping[Node, Any], wide: bool) -> Any:
        if state.op == "get_attr":
            return _widened(operator.attrgetter(state.target)(self._gm), wide)
        function: Callable[..., Any] = state.target
        if state.op == "call_module":
            function = self._gm.get_submodule(state.target)
        args, kwargs = map_arg((state.args, state.kwargs), values.__getitem__)
        if wide:
            args = tuple(_widened(argument, wide) for argument in args)
            kwargs = {name: _widened(argument, wide) for name, argument in kwargs.items()}
        return function(*args, **kwargs)


class _Region:
    """What of a graph has to run to see the effect of a rewrite.

    Attributes:
        before, after: the two versions, in order.
        pairs: what must be equal: nodes before and after, or constants that the graph returns.
        members: the nodes that run, of either version.
        inputs: the members that get made-up values, with their fake ones.
    """

    def __init__(self, before: Snapshot, after: Snapshot) -> None:
        self.before, self.after = before.states, after.states
        kept = [node for node in self.after if node in self.before]
        changed = [node for node in kept if not self.after[node].same_as(self.before[node])]
        self.pairs = list(self._pairs(changed))
        if len(self.before) > WHOLE_GRAPH_NODES:
            self.members = self._upstream(changed, UPSTREAM_LEVELS)
        elif any(node.op != "placeholder" for state in self.before.values() for node in written_nodes(state.node)):
            self.members = {*self.before, *self.after}
        else:
            self.members = self._upstream(changed, len(self.before) + len(self.after))
        self.inputs = {
            node: self.before[node].meta.get("val")
            for node in kept
            if node in self.members
            and (node.op == "placeholder" or not self.members.issuperset(self.before[node].arguments()))
        }

    def _pairs(self, changed: Iterable[Node]) -> Iterator[tuple[Any, Any]]:
        for node in changed:
            if node.op != "output":
                yield node, node
                continue
            old, new = tree_leaves(self.before[node].args), tree_leaves(self.after[node].args)
            yield from ((a, b) for a, b in zip(old, new) if a is not b)

    def _upstream(self, changed: Iterable[Node], limit: int) -> set[Node]:
        """The changed nodes and what they need, through at most `limit` unchanged nodes in a row."""
        levels: dict[Node, int] = {}
        stack = [(node, 0) for node in changed]
        while stack:
            node, level = stack.pop()
            if levels.get(node, limit + 1) <= level:
                continue
            levels[node] = level
            old, new = self.before.get(node), self.after.get(node)
            unchanged = old is not None and new is not None and old.same_as(new)
            for state in (old, new):
                if state is not None:
                    stack += [(argument, level + 1 if unchanged else 0) for argument in state.arguments()]
        return set(levels)


def _look_up(reference: Any, values: Mapping[Node, Any]) -> Any:
    return values[reference] if isinstance(reference, Node) else reference


def _widened(value: Any, wide: bool) -> Any:
    """Floating-point tensors, and dtypes among arguments, in float64."""
    if wide and isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return torch.float64 if wide and isinstance(value, torch.dtype) and value.is_floating_point else value


def _difference(old: Any, new: Any, *, exact: bool) -> str | None:
    """How two real values differ, or `None`."""
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        return next((d for a, b in zip(old, new) if (d := _difference(a, b, exact=exact)) is not None), None)
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return None if type(old) is type(new) and (old == new or old != old) else f"{old} became {new}"
    if old.dtype != new.dtype or old.shape != new.shape:
        return f"{old.dtype}{list(old.shape)} became {new.dtype}{list(new.shape)}"
    if not (old.dtype.is_floating_point or old.dtype.is_complex):
        wrong = old != new
    elif exact or old.dtype.is_complex:
        old, new = (torch.view_as_real(t.resolve_conj()) if t.dtype.is_complex else t for t in (old, new))
        old, new = old.double(), new.double()
        wrong = ((old != new) | (old.signbit() != new.signbit())) & ~(old.isnan() & new.isnan())
    else:
        tolerance = torch.finfo(old.dtype).eps ** 0.5
        wrong = ~torch.isclose(new.double(), old.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    if not wrong.any():
        return None
    where = tuple(wrong.nonzero()[0].tolist())
    return f"element {where} was {old[where].item()} and is {new[where].item()} ({int(wrong.sum())} of {wrong.numel()})"
