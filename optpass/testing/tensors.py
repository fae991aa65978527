"""Tensors of every layout and of telling values, described by text that makes them again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: What `tensor` fills memory with, for floating-point dtypes; integers and bools are always small random ones.
DATA = ("normal", "small-integers", "special")


def tensor(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    layout: str = "contiguous",
    data: str = "normal",
    seed: int = 0,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor with reproducible values.

    Args:
        shape: its sizes; empty for a 0-dim tensor.
        layout: a name in `LAYOUTS`.
        data: ``normal`` numbers; ``small-integers`` (ties for comparisons and extrema); ``special``: NaN, ±inf, ±0
            among normal numbers.
        seed: the same seed gives the same values.
    """
    fill = _filler(dtype, data, torch.Generator().manual_seed(seed))
    return LAYOUTS[layout](tuple(shape), fill).requires_grad_(requires_grad)


Fill = Callable[[Sequence[int]], Tensor]


def _filler(dtype: torch.dtype, data: str, generator: torch.Generator) -> Fill:
    def fill(shape: Sequence[int]) -> Tensor:
        if dtype == torch.bool:
            return torch.rand(shape, generator=generator) < 0.5
        if not dtype.is_floating_point:
            low = 0 if dtype == torch.uint8 else -4
            return torch.randint(low, 7, shape, generator=generator).to(dtype)
        if data == "small-integers":
            return torch.randint(-2, 3, shape, generator=generator).to(dtype)
        out = torch.randn(shape, generator=generator, dtype=torch.float64)
        if data == "special":
            pool = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0], dtype=torch.float64)
            drawn = pool[torch.randint(0, len(pool), shape, generator=generator)]
            out = torch.where(torch.rand(shape, generator=generator) < 0.15, drawn, out)
        return out.to(dtype)

    return fill


def _contiguous(shape: Sequence[int], fill: Fill) -> Tensor:
    return fill(shape)


def _transposed(shape: Sequence[int], fill: Fill) -> Tensor:
    return fill(shape[::-1]).permute(tuple(reversed(range(len(shape)))))


def _offset(shape: Sequence[int], fill: Fill) -> Tensor:
    """Memory that begins in the middle of a storage, aligned to one element only."""
    return fill([math.prod(shape) + 3])[3:].view(shape)


def _gaps(shape: Sequence[int], fill: Fill) -> Tensor:
    """Every other element of memory, along the last dimension."""
    return fill([*shape[:-1], 2 * shape[-1]])[..., ::2] if shape else fill(shape)


def _padded(shape: Sequence[int], fill: Fill) -> Tensor:
    """Rows longer than the tensor is wide."""
    return fill([*shape[:-1], shape[-1] + 3])[..., : shape[-1]] if shape else fill(shape)


def _expanded(shape: Sequence[int], fill: Fill) -> Tensor:
    """The first dimension has stride 0."""
    return fill([1, *shape[1:]]).expand(*shape) if shape else fill(shape)


def _channels_last(shape: Sequence[int], fill: Fill) -> Tensor:
    """Only where no size is 1: else PyTorch's fake tensors take the format for another one."""
    out = fill(shape)
    return out.contiguous(memory_format=torch.channels_last) if len(shape) == 4 and min(shape) > 1 else out


LAYOUTS: Mapping[str, Callable[[Sequence[int], Fill], Tensor]] = {
    "contiguous": _contiguous,
    "transposed": _transposed,
    "offset": _offset,
    "gaps": _gaps,
    "padded": _padded,
    "expanded": _expanded,
    "channels-last": _channels_last,
}


@dataclass(frozen=True)
class Input:
    """The arguments of one call of `tensor`; ``of`` makes it a view of an earlier input's memory instead."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    layout: str = "contiguous"
    data: str = "normal"
    seed: int = 0
    requires_grad: bool = False
    of: str = ""

    def code(self) -> str:
        """Python that makes the tensor; an input ``of`` another one reads that by its name."""
        if self.of:
            return self.of
        parts = [str(self.shape), str(self.dtype)]
        default = Input(self.shape)
        for name in ("layout", "data", "seed", "requires_grad"):
            if getattr(self, name) != getattr(default, name):
                parts.append(f"{name}={getattr(self, name)!r}")
        return f"tensor({', '.join(parts)})"
