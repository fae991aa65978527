"""Real values for fake ones: the shape and strides of a `meta["val"]`, filled with numbers that break rewrites."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from optpass.torch_private import ShapeEnv, tree_leaves

__all__ = ["Trial", "trials"]

MAX_ELEMENTS = 1 << 22
"""Inputs with more elements than this in all are tried on ordinary values only."""
MAX_TURNS = 8
"""So many times at most are inputs of few elements tried in a scenario, to see all of its numbers."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One filling of a graph's inputs.

    Attributes:
        scenario: `ordinary`: normal numbers, integers 0 and 1. `special`: NaN, ±inf, ±0, denormal and tiny numbers
            among them. `large`: the largest numbers of the dtype, integers at their limits.
        sizes: a value for each size symbol.
        turn: tells trials of one scenario apart.
    """

    scenario: str
    sizes: Mapping[sympy.Symbol, int]
    turn: int = 0

    def value(self, fake: Any, place: int) -> Any:
        """A value like `fake`: a tensor, a number, or a list or tuple of these; the same for the same `place`."""
        if isinstance(fake, (list, tuple)):
            return [self.value(item, 64 * place + index + 1) for index, item in enumerate(fake)]
        if not isinstance(fake, torch.Tensor):
            return _number(fake, self.sizes)
        shape = [_number(size, self.sizes) for size in fake.shape]
        stride = [_number(step, self.sizes) for step in fake.stride()]
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if all(shape) else 0
        generator = torch.Generator().manual_seed(1000 * self.turn + place)
        flat = _ordinary(extent, fake.dtype, generator)
        if (pool := self._pool(fake.dtype)) is not None:
            flat = _mixed(flat, pool, self.turn, generator)
        return flat.to(fake.device).as_strided(shape, stride)

    def _pool(self, dtype: torch.dtype) -> torch.Tensor | None:
        numbers: list[float] = []
        if dtype.is_floating_point:
            limits = torch.finfo(dtype)
            if self.scenario == "special":
                numbers = [math.nan, math.inf, -math.inf, 0.0, -0.0, limits.tiny, limits.tiny / 4, -1.0]
            elif self.scenario == "large":
                numbers = [limits.max, limits.min, limits.max / 2, -limits.max / 3, 1.0, limits.max**0.5]
        elif self.scenario == "large" and not dtype.is_complex and dtype != torch.bool:
            bounds = torch.iinfo(dtype)
            numbers = [bounds.min, bounds.max, 0, 1, 2, bounds.max // 2, max(bounds.min, -1), max(bounds.min, -2)]
            return torch.tensor(numbers, dtype=dtype)
        # Rounded to the dtype here: the largest float64 is infinite as a float32.
        return torch.tensor(numbers, dtype=torch.float64).to(dtype) if numbers else None


def trials(fakes: Sequence[Any], *, exact: bool) -> Iterator[Trial]:
    """The trials that inputs like `fakes` deserve; none if one of them cannot be made up.

    Sizes are those that were traced and, where symbolic, primes of their own, so that two dimensions coincide only if
    they must. Large floating-point numbers overflow here or there by the order of a sum, so that only `exact` rewrites
    meet them.
    """
    tensors = [leaf for leaf in tree_leaves(list(fakes)) if isinstance(leaf, torch.Tensor)]
    if any(fake is None for fake in fakes) or any(tensor.layout != torch.strided for tensor in tensors):
        return
    symbols = _symbols(fakes)
    traced = {symbol: env.optimization_hint(symbol, fallback=2) for symbol, env in symbols.items()}
    yield Trial("ordinary", traced)
    if symbols:
        yield Trial("ordinary", {symbol: int(sympy.prime(index + 4)) for index, symbol in enumerate(symbols)})
    counts = [_number(tensor.numel(), traced) for tensor in tensors]
    if sum(counts) > MAX_ELEMENTS:
        return
    turns = min(MAX_TURNS, math.ceil(8 / max(1, min(counts, default=8))))
    floating = any(tensor.dtype.is_floating_point for tensor in tensors)
    whole = any(not (t.dtype.is_floating_point or t.dtype.is_complex or t.dtype == torch.bool) for t in tensors)
    for turn in range(turns):
        if floating:
            yield Trial("special", traced, turn)
        if whole or (floating and exact):
            yield Trial("large", traced, turn)


def _symbols(fakes: Sequence[Any]) -> dict[sympy.Symbol, ShapeEnv]:
    found: dict[sympy.Symbol, ShapeEnv] = {}
    for leaf in tree_leaves(list(fakes)):
        numbers = (*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else (leaf,)
        for number in numbers:
            if isinstance(number, (torch.SymInt, torch.SymFloat)):
                ordered = sorted(number.node.expr.free_symbols, key=str)
                found.update((symbol, number.node.shape_env) for symbol in ordered if symbol not in found)
    return found


def _number(value: Any, sizes: Mapping[sympy.Symbol, int]) -> Any:
    if isinstance(value, torch.SymInt):
        return int(value.node.expr.xreplace(dict(sizes)))
    if isinstance(value, torch.SymFloat):
        return float(value.node.expr.xreplace(dict(sizes)))
    return value


def _ordinary(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_complex:
        return torch.randn(count, dtype=torch.complex64, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(0, 2, (count,), generator=generator).to(dtype)


def _mixed(values: torch.Tensor, pool: torch.Tensor, turn: int, generator: torch.Generator) -> torch.Tensor:
    """Numbers of the pool in random places; where places are few, each in turn."""
    count = len(values)
    if count < len(pool):
        return pool[(torch.arange(count) + turn * count) % len(pool)]
    drawn = pool[torch.randint(0, len(pool), (count,), generator=generator)]
    drawn[: len(pool)] = pool[torch.randperm(len(pool), generator=generator)]
    keep = torch.rand(count, generator=generator) < 0.5
    keep[: len(pool)] = False
    return torch.where(keep, values, drawn)
