"""The output contract, checked on the first call and then compiled away: what eager would return, to the stride."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from optpass.codegen.pointwise import RULES
from optpass.codegen.reductions import is_reduction
from optpass.errors import ContractError
from optpass.options import Options
from optpass.passes.effects import storages_of

log = logging.getLogger(__name__)

Call = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Outputs:
    """What the callers of a graph rely on, read off the graph before passes change it.

    Attributes:
        values: for each output its fake tensor; None where it is no tensor.
        names: for each output its node's name.
        sources: for each output the inputs, by position, whose memory it may share.
        strided: for each output whether its strides are fixed (an ATen library operator chooses its own at run time).
    """

    values: tuple[Tensor | None, ...]
    names: tuple[str, ...]
    sources: tuple[frozenset[int], ...]
    strided: tuple[bool, ...]

    @classmethod
    def of(cls, graph: Graph) -> Outputs:
        (output,) = graph.find_nodes(op="output")
        nodes = [o if isinstance(o, Node) and isinstance(o.meta.get("val"), Tensor) else None for o in output.args[0]]
        inputs = [storages_of(n) for n in graph.nodes if n.op == "placeholder"]
        shared = [frozenset(i for i, s in enumerate(inputs) if n is not None and s & storages_of(n)) for n in nodes]
        return cls(
            values=tuple(None if n is None else n.meta["val"] for n in nodes),
            names=tuple("" if n is None else n.name for n in nodes),
            sources=tuple(shared),
            strided=tuple(n is not None and (n.target in RULES or is_reduction(n)) for n in nodes),
        )


def checked_once(call: Call, outputs: Outputs, options: Options) -> Call:
    """Wraps a boxed function so that its first call is checked against the graph's traced outputs.

    Dtype, shape (where static) and which inputs an output shares memory with must be as traced, and so must the strides
    of what kernels made (a library operator's own choice of strides is eager's choice). A breach is repaired by a copy,
    logged as an error, and checked for on every later call; under ``verify="strict"`` it raises.

    Raises:
        ContractError: see above.
    """
    if options.verify == "off":
        return _boxed(call)
    state: dict[str, Call] = {}

    def first(args: list[Any]) -> Sequence[Any]:
        held = list(args)  # kept alive, or freed memory would come back as an output and look shared
        memory = {a.untyped_storage().data_ptr(): i for i, a in enumerate(held) if _has_memory(a)}
        results = list(call(args))
        clean = True
        for k, want in enumerate(outputs.values):
            if want is None or not isinstance(results[k], Tensor):
                continue
            breach = _breach(results[k], want, outputs.sources[k], memory, outputs.strided[k])
            if breach is None:
                continue
            clean = False
            message = f"output {k} ({outputs.names[k]}) of a compiled graph {breach}"
            if options.verify == "strict":
                raise ContractError(message)
            log.error("optpass: %s; the output is copied into its proper form", message)
            results[k] = _repaired(results[k], want)
        if clean:
            state["call"] = call
        return results

    def run(args: list[Any]) -> Sequence[Any]:
        return state.get("call", first)(args)

    return _boxed(run)


def _boxed(call: Call) -> Call:
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _has_memory(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.numel() > 0


def _breach(got: Tensor, want: Tensor, shared: frozenset[int], memory: dict[int, int], strided: bool) -> str | None:
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
