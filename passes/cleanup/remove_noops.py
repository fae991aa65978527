"""Operations that return what they were given."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import Node

from optpass.passes.rules import Candidate, Outcome, Refuse, Rule, RulePass, Use, same_meta

__all__ = ["RemoveNoops"]

aten, prims = torch.ops.aten, torch.ops.prims


def _unit(node: Candidate) -> Outcome:
    """x * 1, x / 1, x ** 1"""
    other = node.args[1]
    if isinstance(other, (Node, bool)) or other != 1 or node.kwargs:
        return None
    return _first_argument(node)


def _zero(node: Candidate) -> Outcome:
    """x + 0, x - 0"""
    other = node.args[1]
    if isinstance(other, Node) or other != 0 or node.kwargs:
        return None
    if node.meta["val"].dtype.is_floating_point or node.meta["val"].dtype.is_complex:
        keeps_sign = math.copysign(1.0, other) == (-1.0 if node.target is aten.add.Tensor else 1.0)
        if not keeps_sign or node.meta["val"].dtype.is_complex:
            return Refuse("-0.0 + 0.0 is +0.0")
    return _first_argument(node)


def _copy_of_first(node: Candidate) -> Outcome:
    """clone, a conversion that converts nothing, a repetition of one"""
    if node.kwargs.get("pin_memory"):
        return Refuse("it moves the data to pinned memory")
    return _first_argument(node)


def _no_padding(node: Candidate) -> Outcome:
    """Padding by nothing; what is cut off on one side may be added on the other, so that the shape says nothing."""
    return _first_argument(node) if all(isinstance(n, int) and n == 0 for n in node.args[1]) else None


def _same_view(node: Candidate) -> Outcome:
    """A view with the shape, strides and offset of what it views shows the same elements."""
    source, value = node.args[0], node.meta["val"]
    if not isinstance(source, Node) or not isinstance(value, torch.Tensor) or value.dtype.is_complex:
        return None
    if not same_meta(node, source):
        return None
    return Use(source) if value.storage_offset() == source.meta["val"].storage_offset() else None


def _concatenation_of_one(node: Candidate) -> Outcome:
    (source, *others) = node.args[0]
    return Use(source) if not others and same_meta(node, source) else None


def _functional_copy(node: Candidate) -> Outcome:
    """copy(destination, source) is the source in the destination's dtype and layout."""
    source = node.args[1]
    return Use(source) if isinstance(source, Node) and same_meta(node, source) else None


def _same_branches(node: Candidate) -> Outcome:
    _, chosen, other = node.args
    return Use(chosen) if chosen is other and isinstance(chosen, Node) and same_meta(node, chosen) else None


def _dropout_off(node: Candidate) -> Outcome:
    _, probability, training = node.args
    return None if training and probability != 0 else _first_argument(node)


def _idempotent(node: Candidate) -> Outcome:
    source = node.args[0]
    return Use(source) if source.target is node.target and source.args[1:] == node.args[1:] else None


def _involution(node: Candidate) -> Outcome:
    source = node.args[0]
    if source.target is not node.target or not isinstance(source.args[0], Node):
        return None
    return Use(source.args[0]) if same_meta(node, source.args[0]) else Refuse("the strides differ")


def _first_argument(node: Candidate) -> Outcome:
    """The first argument if dtype, shape, strides and device are the node's."""
    source = node.args[0]
    return Use(source) if isinstance(source, Node) and same_meta(node, source) else None


_Targets = tuple[Callable[..., Any], ...]
_VIEWS: _Targets = (
    aten._unsafe_view.default,
    aten.alias.default,
    aten.as_strided.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.diagonal.default,
    aten.expand.default,
    aten.lift_fresh.default,
    aten.narrow.default,
    aten.permute.default,
    aten.reshape.default,
    aten.slice.Tensor,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.t.default,
    aten.to.dtype,
    aten.transpose.int,
    aten.view.default,
)
_COPIES: _Targets = (
    aten._to_copy.default,
    aten.clone.default,
    aten.lift_fresh_copy.default,
    aten.repeat.default,
    prims.convert_element_type.default,
)
_IDEMPOTENT: _Targets = (
    aten.abs.default,
    aten.ceil.default,
    aten.floor.default,
    aten.relu.default,
    aten.round.default,
    aten.trunc.default,
)


class RemoveNoops(RulePass):
    """Take out operations whose result equals an argument, bit for bit.

    Before:
        a = aten.mul.Tensor(x, 1.0)
        b = aten.view.default(a, [8, 16])      # x is [8, 16] already
        c = aten.relu.default(b)
    After:
        c = aten.relu.default(x)
    Holds when: dtype, shape, strides and device are those of the argument; of a view, the offset as well.
    Leaves alone: `x + 0.0`, which turns -0.0 into +0.0; a copy that a caller receives while its source is an input or
        reaches the caller too; a copy of storage that is written to; views of complex tensors, which may conjugate.
    Numerics: exact.
    Source: ours. Runs after autograd, where `detach` means nothing.
    """

    name: ClassVar[str] = "remove-noops"
    exact: ClassVar[bool] = True
    rules: ClassVar[Sequence[Rule]] = (
        Rule("times-one", (aten.mul.Tensor, aten.div.Tensor, aten.pow.Tensor_Scalar), _unit),
        Rule("plus-zero", (aten.add.Tensor, aten.sub.Tensor), _zero),
        Rule("same-view", _VIEWS, _same_view),
        Rule("copy-of-same", _COPIES, _copy_of_first),
        Rule("no-padding", (aten.constant_pad_nd.default,), _no_padding),
        Rule("concatenation-of-one", (aten.cat.default,), _concatenation_of_one),
        Rule("functional-copy", (aten.copy.default,), _functional_copy),
        Rule("same-branches", (aten.where.self,), _same_branches),
        Rule("dropout-off", (aten.dropout.default,), _dropout_off),
        Rule("idempotent", _IDEMPOTENT, _idempotent),
        Rule("involution", (aten.neg.default, aten.logical_not.default, aten.bitwise_not.default), _involution),
    )
