"""Chains of memory-bound operators, as models spell them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads import Case


@dataclass(frozen=True)
class Sizes:
    """Rows and columns of the chains' tensors; softmax has two widths, one of them odd."""

    rows: int
    width: int
    softmax_rows: int
    tokens: int
    classes: int
    softmax_widths: tuple[int, int] = (1024, 4095)


SIZES = {
    "cpu": Sizes(rows=4096, width=1024, softmax_rows=4096, tokens=1024, classes=8192),
    "cuda": Sizes(rows=16384, width=4096, softmax_rows=32768, tokens=8192, classes=50257),
}
QUICK = Sizes(rows=64, width=96, softmax_rows=16, tokens=16, classes=300, softmax_widths=(128, 255))


class LayerNormGelu(nn.Module):
    """Layer norm, exact GELU, residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual + F.gelu(self.norm(x))


class RmsNorm(nn.Module):
    """Residual and RMS norm in Llama's spelling; gives the norm and the sum, which the next block adds to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        wide = total.to(torch.promote_types(total.dtype, torch.float32))
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype), total


class Softmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, -1)


class SwiGlu(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up


class CrossEntropy(nn.Module):
    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target)


def cases(device: str, quick: bool) -> dict[tuple[str, str], Callable[[], Case]]:
    """Makers of the chains by group and name."""
    size = QUICK if quick else SIZES[device]
    shape = (size.rows, size.width)

    def softmax(width: int) -> Callable[[], Case]:
        return lambda: Case(Softmax(), (torch.randn(size.softmax_rows, width),))

    def cross_entropy() -> Case:
        logits = torch.randn(size.tokens, size.classes, requires_grad=True)
        return Case(CrossEntropy(), (logits, torch.randint(size.classes, (size.tokens,))), training=True)

    def layer_norm() -> Case:
        x = torch.randn(shape, requires_grad=True)
        return Case(nn.LayerNorm(size.width), (x,), training=True, upstream=torch.randn(shape))

    makers = {
        "layernorm-gelu-residual": lambda: Case(LayerNormGelu(size.width), (torch.randn(shape), torch.randn(shape))),
        "rmsnorm-residual": lambda: Case(RmsNorm(size.width), (torch.randn(shape), torch.randn(shape))),
        **{f"softmax-{width}": softmax(width) for width in size.softmax_widths},
        "swiglu": lambda: Case(SwiGlu(), (torch.randn(shape), torch.randn(shape))),
        "cross-entropy-train": cross_entropy,
        "layernorm-train": layer_norm,
    }
    return {("chain", name): make for name, make in makers.items()}
