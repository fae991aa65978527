"""What calling a compiled graph costs by itself: twenty tiny kernels, minus what Dynamo's own guards take."""

from __future__ import annotations

import statistics
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.fx import GraphModule

from benchmarks.measure import interleaved

#: Kernels in the graph: neighbours reduce along different axes, so none can share a loop nest.
KERNELS = 20
SIZE = 8


def tiny(x: Tensor) -> Tensor:
    for _ in range(KERNELS // 2):
        x = F.softmax(F.softmax(x, 1), 0)
    return x


def guards_only(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend whose graphs do nothing: a call costs its guards."""
    results = gm(*inputs)
    return lambda *_: results


def overhead(device: str, backends: Sequence[str], seconds: float) -> dict[str, float]:
    """Microseconds of a call beyond its guards, for each backend."""
    torch.set_num_threads(1)  # threads of one backend that wait for work would slow the others
    x = torch.randn(SIZE, SIZE, device=device)
    named = {"guards": guards_only, **{name: name for name in backends}}
    calls = {name: _called(torch.compile(_own_copy(tiny), backend=backend), x) for name, backend in named.items()}
    samples = interleaved(calls, device, seconds, least=20)
    medians = {name: 1e3 * statistics.median(values) for name, values in samples.items()}
    return {name: medians[name] - medians["guards"] for name in backends}


def show(result: dict[str, float]) -> None:
    table = Table("backend", "µs per call above guards", title=f"a graph of {KERNELS} tiny kernels")
    for name, microseconds in result.items():
        table.add_row(name, f"{microseconds:.1f}")
    Console().print(table)


def _own_copy(function: types.FunctionType) -> types.FunctionType:
    """The same function with a code object of its own: Dynamo keeps compiled graphs, and looks for them, by code."""
    return types.FunctionType(function.__code__.replace(), function.__globals__)


def _called(function: Callable[..., Any], x: Tensor) -> Callable[[], Any]:
    def call() -> Any:
        with torch.no_grad():
            return function(x)

    for _ in range(3):
        call()
    return call
