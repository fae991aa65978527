"""Chains of conversions between dtypes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch.fx import Node

from optpass.passes.rules import Become, Candidate, Outcome, Refuse, Rule, RulePass, Use, same_meta

__all__ = ["CollapseCasts", "holds"]

aten, prims = torch.ops.aten, torch.ops.prims


@functools.cache
def holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if wide == narrow or narrow == torch.bool:
        return not wide.is_complex
    if wide.is_complex or narrow.is_complex or wide == torch.bool:
        return False
    if narrow.is_floating_point:
        if not wide.is_floating_point:
            return False
        w, n = torch.finfo(wide), torch.finfo(narrow)
        return w.eps <= n.eps and w.max >= n.max and w.tiny * w.eps <= n.tiny * n.eps
    limits = torch.iinfo(narrow)
    if wide.is_floating_point:
        return limits.max <= 2 / torch.finfo(wide).eps and limits.max <= torch.finfo(wide).max
    return torch.iinfo(wide).min <= limits.min and limits.max <= torch.iinfo(wide).max


def _cast_of_cast(node: Candidate) -> Outcome:
    inner = node.args[0]
    if not isinstance(inner, Node) or inner.target not in _CASTS or not _changes_dtype_only(inner):
        return None
    source: Candidate = inner.args[0]
    a, b, c = (n.meta["val"].dtype for n in (source, inner, node))
    if not holds(b, a):
        return Refuse(f"{b} does not hold every {a}: the conversion rounds")
    if a == c:
        return Use(source) if same_meta(node, source) else Refuse("the strides differ")
    if not _same_directly(a, b, c):
        return Refuse(f"{a} to {c} may convert otherwise than {b} to {c}")
    return Become(node.target, (source, *node.args[1:]), node.kwargs)


def _same_directly(a: torch.dtype, b: torch.dtype, c: torch.dtype) -> bool:
    """Whether converting a value that `a` and `b` hold gives the same `c` from either."""
    if c.is_floating_point:
        # From an integer the conversion may pass through float32, which must then be exact.
        return b.is_floating_point == a.is_floating_point or holds(torch.float32, a)
    # A float outside the integer's range converts as the machine likes, and not alike from two dtypes.
    return c == torch.bool or not (a.is_floating_point or b.is_floating_point)


def _changes_dtype_only(node: Node) -> bool:
    return node.target is prims.convert_element_type.default or set(node.kwargs) == {"dtype"}


_CASTS = (aten._to_copy.default, prims.convert_element_type.default)


class CollapseCasts(RulePass):
    """Skip a conversion that the next one makes pointless.

    Before:
        a = aten._to_copy.default(x, dtype=torch.float32)      # x is bfloat16
        b = aten._to_copy.default(a, dtype=torch.bfloat16)
    After:
        b = x
    Holds when: the middle dtype holds every value of the first, and the last follows from either alike.
    Leaves alone: float32 → bfloat16 → float32, which rounds and must go on rounding; float to integer; conversions that
        also move or lay out; copies that a caller receives.
    Numerics: exact.
    Source: ours.
    """

    name: ClassVar[str] = "collapse-casts"
    exact: ClassVar[bool] = True
    rules: ClassVar[Sequence[Rule]] = (Rule("cast-of-cast", _CASTS, _cast_of_cast),)
