"""What a workload is: a module, its inputs, and one step of inference or training on them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """A module with its inputs.

    Attributes:
        module: what is compiled.
        inputs: its positional arguments; those that require a gradient are leaves of the training step.
        training: a step is forward and backward.
        upstream: gradient of the output; None where the output is a scalar loss.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    training: bool = False
    upstream: Tensor | None = None

    def to(self, device: str, dtype: torch.dtype) -> Case:
        """A copy on a device, every floating-point tensor in one dtype."""
        move = functools.partial(_moved, device=device, dtype=dtype)
        return replace(
            self,
            module=copy.deepcopy(self.module).to(device=device, dtype=dtype),
            inputs=tuple(map(move, self.inputs)),
            upstream=None if self.upstream is None else move(self.upstream),
        )

    @property
    def leaves(self) -> list[Tensor]:
        return [*self.module.parameters(), *(x for x in self.inputs if x.requires_grad)]

    def step(self, forward: Callable[..., Any]) -> list[Tensor]:
        """One call of `forward`, the module or its compiled form: its outputs, and the gradients when training."""
        if not self.training:
            with torch.no_grad():
                return _tensors(forward(*self.inputs))
        out = forward(*self.inputs)
        return [out.detach(), *torch.autograd.grad(out, self.leaves, self.upstream)]


@dataclass(frozen=True)
class Workload:
    """A named case in one dtype; `make` builds it in float32 on the CPU, the same each time.

    Attributes:
        group: workloads that share a geometric mean.
    """

    name: str
    group: str
    dtype: str
    device: str
    make: Callable[[], Case]

    def case(self) -> Case:
        torch.manual_seed(0)
        return self.make().to(self.device, DTYPES[self.dtype])


def workloads(device: str, dtypes: Sequence[str], *, only: str = "", quick: bool = False) -> list[Workload]:
    """The workloads whose names contain `only`; `quick` makes them tiny."""
    from benchmarks import chains, models

    makers = {**chains.cases(device, quick), **models.cases(device, quick)}
    made = [
        Workload(f"{name}/{dtype}", group, dtype, device, make)
        for (group, name), make in makers.items()
        for dtype in dtypes
    ]
    return [workload for workload in made if only in workload.name]


def compiled(module: nn.Module, backend: str) -> Callable[..., Any]:
    """The module under a backend: `eager` is the module itself; others may name a mode, `inductor:max-autotune`."""
    if backend == "eager":
        return module
    name, _, mode = backend.partition(":")
    return torch.compile(module, backend=name, mode=mode or None)


def _moved(x: Tensor, device: str, dtype: torch.dtype) -> Tensor:
    moved = x.detach().to(device, dtype if x.is_floating_point() else x.dtype)
    return moved.requires_grad_(x.requires_grad)


def _tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)
