"""Counter-based random numbers as graph operators: a seed drawn once per call, and pure functions of it.

`optpass::seed` draws one int64 from PyTorch's generator (an effect: never merged, moved or recomputed);
`optpass::philox_uniform` is pure, so a backward pass may recompute a dropout mask instead of storing it. The stream is
Philox-4x32-10 (Salmon et al. 2011), see `ir.OPS`; numbers do not depend on layout, tiling or device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from optpass.codegen.interpret import philox_uniform as _uniform

#: Counters of different calls in one graph are this far apart.
STREAM_SPACING = 1 << 40


@torch.library.custom_op("optpass::seed", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def seed(device: torch.device) -> Tensor:
    """A fresh random int64, shape ``()``, from the device's default generator."""
    return torch.randint(-(2**63), 2**63 - 1, (), device=device)


@seed.register_fake
def _(device: torch.device) -> Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


@torch.library.custom_op("optpass::philox_uniform", mutates_args=())
def philox_uniform(size: Sequence[int], seed: Tensor, stream: int) -> Tensor:
    """Uniform float32 in [0, 1) of shape ``size``, contiguous; number ``i`` has counter ``stream·2⁴⁰ + i``."""
    count = torch.arange(_numel(size), device=seed.device) + stream * STREAM_SPACING
    return _uniform(seed, count).view(tuple(size))


@philox_uniform.register_fake
def _(size: Sequence[int], seed: Tensor, stream: int) -> Tensor:
    return torch.empty(tuple(size), dtype=torch.float32, device=seed.device)


def _numel(size: Sequence[int]) -> int:
    out = 1
    for s in size:
        out *= s
    return out
