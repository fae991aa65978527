"""The output contract, checked on the first call and then compiled away: what eager would return, to the stride."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from optpass.codegen.lower import is_getitem
from optpass.errors import ContractError
from optpass.options import Options
from optpass.passes.effects import storages_of

log = logging.getLogger(__name__)

Call = Callable[[list[Any]], Sequence[Any]]


def checked_once(call: Call, graph: Graph, options: Options) -> Call:
    """Wraps a boxed function so that its first call is checked against the graph's traced outputs.

    Dtype, shape (where static) and which inputs an output shares memory with must be as traced, and so must the strides
    of what kernels made (a library operator's own choice of strides is eager's choice).
    A breach is repaired by a copy, logged as an error, and checked for on every later call; under ``verify="strict"`` it
    raises.

    Raises:
        ContractError: see above.
    """
    if options.verify == "off":
        return _boxed(call)
    (output,) = graph.find_nodes(op="output")
    expected = [o if isinstance(o, Node) and isinstance(o.meta.get("val"), Tensor) else None for o in output.args[0]]
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    storages = [storages_of(n) for n in inputs]
    shared = [{i for i, s in enumerate(storages) if o is not None and s & storages_of(o)} for o in expected]
    state = {"call": None}

    def first(args: list[Any]) -> Sequence[Any]:
        held = list(args)  # kept alive, or freed memory would come back as an output and look shared
        memory = {a.untyped_storage().data_ptr(): i for i, a in enumerate(held) if _has_memory(a)}
        results = list(call(args))
        clean = True
        for k, node in enumerate(expected):
            if node is None or not isinstance(results[k], Tensor):
                continue
            breach = _breach(results[k], node.meta["val"], shared[k], memory, is_getitem(node))
            if breach is None:
                continue
            clean = False
            message = f"output {k} ({node.name}) of a compiled graph {breach}"
            if options.verify == "strict":
                raise ContractError(message)
            log.error("optpass: %s; the output is copied into its proper form", message)
            results[k] = _repaired(results[k], node.meta["val"])
        if clean:
            state["call"] = call
        return results

    def run(args: list[Any]) -> Sequence[Any]:
        return (state["call"] or first)(args)

    return _boxed(run)


def _boxed(call: Call) -> Call:
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _has_memory(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.numel() > 0


def _breach(got: Tensor, want: Tensor, shared: set[int], memory: dict[int, int], strided: bool) -> str | None:
    if got.dtype != want.dtype:
        return f"has dtype {got.dtype} instead of {want.dtype}"
    if got.dim() != want.dim() or any(isinstance(w, int) and g != w for g, w in zip(got.shape, want.shape)):
        return f"has shape {tuple(got.shape)} instead of {tuple(want.shape)}"
    if want.layout != torch.strided or not _has_memory(got):
        return None
    strides = zip(got.stride(), want.stride(), got.shape)
    if strided and any(isinstance(w, int) and n != 1 and g != w for g, w, n in strides):
        return f"has strides {got.stride()} instead of {want.stride()}"
    owner = memory.get(got.untyped_storage().data_ptr())
    if owner is not None and owner not in shared:
        return f"shares memory with input {owner}, which eager does not"
    return None


def _repaired(got: Tensor, want: Tensor) -> Tensor:
    sizes = got.shape if got.dim() == want.dim() else want.shape
    strides = [w if isinstance(w, int) else g for w, g in zip(want.stride(), got.stride())]
    fresh = torch.empty_strided(sizes, strides, dtype=want.dtype, device=got.device)
    return fresh.copy_(got.view(sizes))
