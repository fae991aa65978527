"""The fake values of nodes: computing them afresh, comparing them, keeping them true after a rewrite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from optpass.errors import VerifyError
from optpass.passes.effects import is_view, may_alias, storages_of
from optpass.passes.snapshot import Snapshot
from optpass.torch_private import (
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    detect_fake_mode,
    enable_python_dispatcher,
    statically_known_true,
)

__all__ = ["Vouched", "alike", "fake_call", "fake_mode_of", "fake_value", "meta_difference", "refresh_values"]


def fake_mode_of(graph: Graph) -> FakeTensorMode | None:
    """The mode that the values of the graph belong to."""
    return detect_fake_mode([node.meta.get("val") for node in graph.nodes])


def fake_value(node: Node, mode: FakeTensorMode | None) -> Any:
    """What the node computes, on the fake values of its arguments; adds no guard."""
    return fake_call(node.target, node.args, node.kwargs, mode)


def fake_call(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], mode: FakeTensorMode | None) -> Any:
    """What an operation would compute on the fake values of the nodes among its arguments; adds no guard."""
    args, kwargs = map_arg((args, dict(kwargs)), lambda argument: argument.meta["val"])
    with _propagating(mode):
        return target(*args, **kwargs)


def alike(old: Any, new: Any) -> bool:
    """Whether two values agree in kind, dtype, shape, strides and device, number by number in lists."""
    if isinstance(old, torch.Tensor):
        return (
            isinstance(new, torch.Tensor)
            and old.dtype == new.dtype
            and old.device == new.device
            and old.layout == new.layout
            and len(old.shape) == len(new.shape)
            and all(map(_equal, old.shape, new.shape))
            and (old.layout != torch.strided or _same_strides(old, new))
        )
    if isinstance(old, (list, tuple)):
        return isinstance(new, (list, tuple)) and len(old) == len(new) and all(map(alike, old, new))
    if isinstance(old, (torch.SymInt, int)) and not isinstance(old, bool):
        return isinstance(new, (torch.SymInt, int)) and _equal(old, new)
    return type(old) is type(new)


def meta_difference(old: Any, new: Any) -> str | None:
    """What differs between two values that are not alike, as a sentence; `None` if they are."""
    return None if alike(old, new) else f"{_describe(old)} became {_describe(new)}"


class Vouched(NamedTuple):
    """The fake value of a node and the form of the node that it was computed for."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    value: Any


def refresh_values(
    graph: Graph,
    before: Snapshot,
    mode: FakeTensorMode | None,
    vouched: Mapping[Node, Vouched] = MappingProxyType({}),
    *,
    everything: bool,
) -> None:
    """Check the value of each changed node against a fresh one and store the fresh one; fill in missing values.

    A node that did not change keeps its value unless it is a view of one whose storage changed. With `everything` each
    node is computed afresh, vouched for or not.

    Raises:
        VerifyError: a fresh value differs in dtype, shape, strides or device.
    """
    renewed: dict[Node, frozenset[int]] = {}
    changed = set(graph.nodes) if everything else set(before.changed(graph))
    with _propagating(mode):
        for node in graph.nodes:
            if node.op == "call_module" and node in changed:
                _check_submodule(node)
            moved = [argument for argument in node.all_input_nodes if argument in renewed] if renewed else []
            if node.op != "call_function" or not (moved or node in changed) or not _can_propagate(node):
                continue
            old = storages_of(node)
            stale_view = any(not old.isdisjoint(renewed[argument]) for argument in moved)
            if not stale_view and (node not in changed or (not everything and _surely_fresh(node, before))):
                continue
            known = None if everything or moved else vouched.get(node)
            if known is not None and known[:3] == (node.target, node.args, node.kwargs):
                fresh = known.value
            else:
                args, kwargs = map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
                fresh = node.target(*args, **kwargs)
            if "val" in node.meta and (difference := meta_difference(node.meta["val"], fresh)):
                raise VerifyError(f"value of node {node.name} is stale: {difference}", where=node.format_node())
            state = before.get(node)
            was_view = stale_view or is_view(node) or (state is not None and may_alias(state.target))
            stored, node.meta["val"] = node.meta.get("val"), fresh
            if stored is not None and not was_view and not is_view(node):
                node.meta["val"] = stored
            else:
                renewed[node] = old


def _check_submodule(node: Node) -> None:
    """The value of a call is that of the sub-graph's output; the sub-graph itself was made of checked nodes."""
    owner = node.graph.owning_module
    submodule = owner.get_submodule(str(node.target)) if owner is not None else None
    if not isinstance(submodule, GraphModule):
        return
    value = map_arg(submodule.graph.output_node().args[0], lambda argument: argument.meta.get("val"))
    if difference := meta_difference(value, node.meta.setdefault("val", value)):
        raise VerifyError(f"value of node {node.name} is not that of its sub-graph: {difference}")


def _surely_fresh(node: Node, before: Snapshot) -> bool:
    """Whether only arguments changed, for others of equal metadata, and the result is no view: the value stands."""
    state = before.get(node)
    if state is None or "val" not in node.meta or state.target is not node.target or may_alias(node.target):
        return False
    return _same_arguments(state.args, node.args) and _same_arguments(state.kwargs, node.kwargs)


def _same_arguments(old: Any, new: Any) -> bool:
    if isinstance(old, Node):
        return old is new or (isinstance(new, Node) and alike(old.meta.get("val"), new.meta.get("val")))
    if isinstance(old, (list, tuple)):
        return isinstance(new, (list, tuple)) and len(old) == len(new) and all(map(_same_arguments, old, new))
    if isinstance(old, dict):
        return isinstance(new, dict) and old.keys() == new.keys() and all(_same_arguments(old[k], new[k]) for k in old)
    return type(old) is type(new) and old == new


def _can_propagate(node: Node) -> bool:
    """Whether a fake run is meaningful: no higher-order operator, no fresh unbacked size, all argument values known."""
    if isinstance(node.target, HigherOrderOperator):
        return False
    if isinstance(node.target, OpOverload) and _DATA_DEPENDENT & set(node.target.tags):
        return False
    return all("val" in argument.meta for argument in node.all_input_nodes)


_DATA_DEPENDENT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def _same_strides(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether tensors of one shape lay out their elements alike.

    The stride of a dimension of size 1 moves nowhere, nor does any in an empty tensor; PyTorch's own kernels and their
    fake counterparts disagree about such strides.
    """
    sizes = old.shape
    return 0 in [size for size in sizes if isinstance(size, int)] or all(
        (isinstance(size, int) and size == 1) or _equal(a, b) for size, a, b in zip(sizes, old.stride(), new.stride())
    )


def _equal(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return statically_known_true(a == b)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        strides = tuple(value.stride()) if value.layout == torch.strided else value.layout
        return f"{value.dtype}{list(value.shape)} strides {strides} on {value.device}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_describe, value))})"
    return f"{type(value).__name__} {value}"


@contextlib.contextmanager
def _propagating(mode: FakeTensorMode | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if mode is not None:
            stack.enter_context(mode)
            if mode.shape_env is not None:
                stack.enter_context(mode.shape_env.suppress_guards())
                stack.enter_context(enable_python_dispatcher())
        yield
