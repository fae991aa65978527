"""Chains of views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from optpass.passes.effects import is_view
from optpass.passes.rules import Become, Candidate, Outcome, Rule, RulePass, Use, same_meta

__all__ = ["CollapseViews"]

aten = torch.ops.aten

_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_FOLLOWS_ORDER = frozenset(
    {
        *_RESHAPES,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.unsqueeze.default,
        aten.flatten.using_ints,
    }
)
_PERMUTES = (aten.permute.default, aten.t.default, aten.transpose.int)
_VIEWS = (
    *(_FOLLOWS_ORDER | {*_PERMUTES}),
    aten.expand.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.alias.default,
    aten.detach.default,
)


def _round_trip(node: Candidate) -> Outcome:
    """Views of one storage with equal shape, strides and offset show the same elements."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dtype.is_complex:
        return None
    source = node.args[0]
    while source.target in _VIEWS and is_view(source):
        source = source.args[0]
        if same_meta(node, source) and value.storage_offset() == source.meta["val"].storage_offset():
            return Use(source)
    return None


def _reshape_of_reshape(node: Candidate) -> Outcome:
    inner = node.args[0]
    if inner.target not in _FOLLOWS_ORDER or not is_view(inner):
        return None
    return Become(node.target, (inner.args[0], node.args[1]))


def _permute_of_permute(node: Candidate) -> Outcome:
    inner = node.args[0]
    if inner.target not in _PERMUTES:
        return None
    outer_order, inner_order = _order(node), _order(inner)
    return Become(aten.permute.default, (inner.args[0], [inner_order[dim] for dim in outer_order]))


def _expand_of_expand(node: Candidate) -> Outcome:
    inner = node.args[0]
    if inner.target is not aten.expand.default or any(size == -1 for size in node.args[1] if isinstance(size, int)):
        return None
    return Become(node.target, (inner.args[0], node.args[1]), node.kwargs)


def _order(node: Candidate) -> Sequence[int]:
    """For each dimension of the result, the dimension of the argument that it shows."""
    rank = node.args[0].meta["val"].dim()
    if node.target is aten.permute.default:
        return [dim % rank for dim in node.args[1]]
    order: list[Any] = list(range(rank))
    if rank > 1:
        a, b = node.args[1:] if node.target is aten.transpose.int else (0, 1)
        order[a], order[b] = order[b], order[a]
    return order


class CollapseViews(RulePass):
    """Replace a chain of views by one view, or by what the chain started from.

    Before:
        a = aten.permute.default(x, [1, 0, 2])
        b = aten.permute.default(a, [0, 2, 1])
        c = aten.squeeze.dim(aten.unsqueeze.default(y, 0), 0)
    After:
        b = aten.permute.default(x, [1, 2, 0])
        c = y
    Holds when: shape and strides stay; of a chain that ends where it began, the offset as well.
    Leaves alone: reshapes that copy, views that the traced program returns as objects of their own, complex tensors,
        whose views may conjugate; an inner view with other users stays for them.
    Numerics: exact; no element moves.
    Source: ours.
    """

    name: ClassVar[str] = "collapse-views"
    exact: ClassVar[bool] = True
    rules: ClassVar[Sequence[Rule]] = (
        Rule("round-trip", _VIEWS, _round_trip),
        Rule("reshape-of-reshape", _RESHAPES, _reshape_of_reshape),
        Rule("permute-of-permute", _PERMUTES, _permute_of_permute),
        Rule("expand-of-expand", (aten.expand.default,), _expand_of_expand),
    )
