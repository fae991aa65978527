"""What an operation does besides computing its result: write to an argument, draw random numbers, act on the world."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node

from optpass.torch_private import HigherOrderOperator, OpOverload, is_impure_op, storage_id

__all__ = ["has_effect", "is_random", "is_view", "may_alias", "storages_of", "written_nodes"]


@functools.cache
def _draws_random(target: Callable[..., Any]) -> bool:
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


@functools.cache
def _written(target: Callable[..., Any]) -> tuple[tuple[int, str], ...]:
    """Position and name of each argument that the operation writes to."""
    if not isinstance(target, OpOverload):
        return ()
    arguments = enumerate(target._schema.arguments)
    return tuple((i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write)


@functools.cache
def may_alias(target: Callable[..., Any]) -> bool:
    """Whether a result of the operation can share storage with an argument: views, `reshape`, `to`, in-place forms."""
    if not isinstance(target, OpOverload):
        return True
    # `_unsafe_view` and `lift_fresh` share storage although their schemas do not say so.
    return target in _SILENT_ALIASES or any(r.alias_info is not None for r in target._schema.returns)


_SILENT_ALIASES = frozenset({torch.ops.aten._unsafe_view.default, torch.ops.aten.lift_fresh.default})


def is_random(node: Node) -> bool:
    """Whether the node advances a random generator."""
    return node.op == "call_function" and _draws_random(node.target)


@functools.cache
def _acts(target: Callable[..., Any]) -> bool:
    return isinstance(target, HigherOrderOperator) or is_impure_op(target, impure_random=False)


def has_effect(node: Node) -> bool:
    """Whether running the node can be noticed other than through its result and the random generator.

    Writes to arguments, assertions, operators registered as effectful, and every higher-order operator: its body is not
    looked into.
    """
    return node.op in ("placeholder", "output", "call_module", "call_method") or (
        node.op == "call_function" and _acts(node.target)
    )


def written_nodes(node: Node) -> Iterator[Node]:
    """The argument nodes that the node writes to."""
    if node.op != "call_function":
        return
    for position, name in _written(node.target):
        written = node.args[position] if position < len(node.args) else node.kwargs.get(name)
        for item in written if isinstance(written, (list, tuple)) else (written,):
            if isinstance(item, Node):
                yield item


def storages_of(node: Node) -> frozenset[int]:
    """Numbers of the storages of the node's tensors, by its fake value: nodes share one exactly when they alias."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return frozenset((storage_id(value),))
    return frozenset(_storages(value))


def _storages(value: Any) -> Iterator[int]:
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided:
            yield storage_id(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _storages(item)


def is_view(node: Node) -> bool:
    """Whether the node shares storage with one of its arguments; so does access to a tuple."""
    storages = storages_of(node)
    return bool(storages) and any(not storages.isdisjoint(storages_of(a)) for a in node.all_input_nodes)
