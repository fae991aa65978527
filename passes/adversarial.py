"""Real values for fake ones: the shape and strides of a `meta["val"]`, filled with numbers that break rewrites."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch

from optpass.torch_private import ShapeEnv, tree_leaves

__all__ = ["SCENARIOS", "hinted_sizes", "prime_sizes", "real_value"]

SCENARIOS = ("ordinary", "special", "limits")
"""`ordinary`: normal numbers, integers 0 and 1. `special`: NaN, ±inf, ±0, denormal, large and small numbers among
ordinary ones. `limits`: the largest and smallest integers as well."""

Sizes = Mapping[sympy.Symbol, int]


def real_value(fake: Any, sizes: Sizes, scenario: str, seed: int) -> Any:
    """A value like `fake`, the same for the same arguments.

    Args:
        fake: a tensor, a symbolic or plain number, or a list or tuple of these.
        sizes: a value for each size symbol.
        scenario: one of `SCENARIOS`.
    """
    if isinstance(fake, (list, tuple)):
        return [real_value(item, sizes, scenario, seed + index) for index, item in enumerate(fake)]
    if not isinstance(fake, torch.Tensor):
        return _number(fake, sizes)
    shape = [_number(size, sizes) for size in fake.shape]
    stride = [_number(step, sizes) for step in fake.stride()]
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if all(shape) else 0
    generator = torch.Generator().manual_seed(seed)
    flat = _fill(extent, fake.dtype, scenario, generator).to(fake.device)
    return flat.as_strided(shape, stride)


def hinted_sizes(fakes: Iterable[Any]) -> dict[sympy.Symbol, int]:
    """Each size symbol with the size that it was traced with."""
    return {symbol: env.optimization_hint(symbol, fallback=2) for symbol, env in _symbols(fakes).items()}


def prime_sizes(fakes: Iterable[Any]) -> dict[sympy.Symbol, int]:
    """Each size symbol with a prime of its own, so that two dimensions coincide only if they must."""
    return {symbol: int(sympy.prime(index + 4)) for index, symbol in enumerate(_symbols(fakes))}


def _symbols(fakes: Iterable[Any]) -> dict[sympy.Symbol, ShapeEnv]:
    found: dict[sympy.Symbol, ShapeEnv] = {}
    for leaf in tree_leaves(list(fakes)):
        numbers = (*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else (leaf,)
        for number in numbers:
            if isinstance(number, (torch.SymInt, torch.SymFloat)):
                ordered = sorted(number.node.expr.free_symbols, key=str)
                found.update((symbol, number.node.shape_env) for symbol in ordered if symbol not in found)
    return found


def _number(value: Any, sizes: Sizes) -> Any:
    if isinstance(value, torch.SymInt):
        return int(value.node.expr.xreplace(dict(sizes)))
    if isinstance(value, torch.SymFloat):
        return float(value.node.expr.xreplace(dict(sizes)))
    return value


def _fill(count: int, dtype: torch.dtype, scenario: str, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        ordinary = torch.randn(count, generator=generator)
        limits = torch.finfo(dtype)
        special = [math.nan, math.inf, -math.inf, 0.0, -0.0, limits.tiny, limits.tiny / 4, limits.max, limits.min, 1.0]
        # The pool is rounded to the dtype first: the largest float64 is infinite as a float32.
        values, pool = ordinary.to(dtype), torch.tensor(special, dtype=torch.float64).to(dtype)
        return _mixed(values, pool, generator) if scenario == "special" else values
    if dtype.is_complex:
        return torch.randn(count, dtype=torch.complex64, generator=generator).to(dtype)
    values = torch.randint(0, 2, (count,), generator=generator).to(dtype)
    if scenario != "limits" or dtype == torch.bool:
        return values
    limits = torch.iinfo(dtype)
    extremes = [limits.min, limits.max, 0, 1, 2, limits.max // 2, max(limits.min, -1), max(limits.min, -2)]
    return _mixed(values, torch.tensor(extremes, dtype=dtype), generator)


def _mixed(values: torch.Tensor, pool: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Half of the values, in random places, replaced by numbers drawn from the pool."""
    drawn = pool[torch.randint(0, len(pool), values.shape, generator=generator)]
    return torch.where(torch.rand(values.shape, generator=generator) < 0.5, drawn, values)
