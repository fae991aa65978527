"""Which ATen operators are taken apart while autograd traces, and into what.

Only composites whose pieces kernels can fuse are listed; an operator that a kernel rule expresses directly, or that a
library computes best, stays whole. PyTorch's own decompositions serve where they are right; ours replace those that
would leave the pointwise world (a scatter into zeros) or draw random numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

import optpass.codegen.philox  # noqa: F401  (registers the operators used below)
from optpass.torch_private import get_decompositions, suggest_memory_format

aten = torch.ops.aten

_FROM_TORCH = [
    aten._log_softmax, aten._log_softmax_backward_data, aten._softmax_backward_data, aten._safe_softmax,
    aten.logsumexp, aten.log_sigmoid_forward, aten.log_sigmoid_backward, aten.logaddexp, aten.logit,
    aten.logit_backward,
    aten.native_layer_norm, aten.native_layer_norm_backward, aten.native_group_norm, aten.native_group_norm_backward,
    aten._fused_rms_norm, aten._fused_rms_norm_backward,
    aten.native_batch_norm, aten.native_batch_norm_backward, aten._native_batch_norm_legit,
    aten._native_batch_norm_legit.no_stats, aten._native_batch_norm_legit_functional,
    aten.nll_loss_forward, aten.nll_loss2d_forward, aten.mse_loss, aten.mse_loss_backward, aten.l1_loss,
    aten.smooth_l1_loss, aten.smooth_l1_loss_backward, aten.huber_loss, aten.huber_loss_backward,
    aten.binary_cross_entropy, aten.binary_cross_entropy_backward, aten.binary_cross_entropy_with_logits,
    aten.soft_margin_loss,
    aten.elu, aten.elu_backward, aten.celu, aten.leaky_relu, aten.leaky_relu_backward, aten.hardtanh,
    aten.hardtanh_backward, aten.hardswish, aten.hardswish_backward, aten.hardsigmoid, aten.hardsigmoid_backward,
    aten.hardshrink, aten.softshrink, aten.softplus, aten.softplus_backward, aten.mish, aten.mish_backward,
    aten.glu, aten.glu_backward, aten.threshold, aten._prelu_kernel, aten._prelu_kernel_backward,
    aten.native_dropout_backward, aten.masked_fill, aten.tril, aten.triu, aten.stack, aten.fill, aten.frac,
    aten.isposinf, aten.isneginf, aten.sinc, aten.xlogy, aten.deg2rad, aten.rad2deg, aten.heaviside,
    aten.slice_backward, aten.select_backward, aten.unfold_backward, aten.diagonal_backward, aten.new_full,
    aten.new_zeros, aten.new_ones, aten.zeros_like, aten.ones_like, aten.zeros, aten.ones, aten.full_like,
    aten.std_mean, aten.norm, aten.linalg_vector_norm, aten.nansum, aten.count_nonzero, aten.pixel_shuffle,
    aten.pixel_unshuffle, aten.narrow, aten.expand_as, aten.view_as, aten.sgn,
    aten.expand_copy, aten.squeeze_copy, aten.t_copy, aten.permute_copy, aten.view_copy,
]  # fmt: skip

#: Operators of the list above that a kernel rule expresses directly, in some overload.
_KEPT_WHOLE = [aten.full_like.default]

_BATCH_NORMS = [
    aten.native_batch_norm.default, aten._native_batch_norm_legit.default, aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
]  # fmt: skip


@functools.cache
def table(parity: str) -> dict[object, Callable]:
    """The decomposition table for AOTAutograd; ``parity="eager"`` leaves random operators to ATen."""
    out = {op: fn for op, fn in get_decompositions([*_FROM_TORCH, aten._softmax]).items() if op not in _KEPT_WHOLE}
    out[aten.nll_loss_backward.default] = nll_loss_backward
    out[aten.elu_backward.default] = elu_backward
    out[aten.hardtanh_backward.default] = hardtanh_backward
    out[aten.soft_margin_loss_backward.default] = soft_margin_loss_backward
    out[aten.pow.Scalar] = pow_scalar
    out[aten._efficientzerotensor.default] = torch.zeros  # a tensor without memory can be given to no kernel
    out.update({op: _laid_out_as_eager(out[op]) for op in _BATCH_NORMS})
    log_sigmoid = aten.log_sigmoid_forward.default
    out[log_sigmoid] = _contiguous_on_cpu(out[log_sigmoid])
    if parity == "fast":
        out[aten._softmax.default] = softmax
        out[aten.native_dropout.default] = native_dropout
        out[aten.bernoulli.p] = bernoulli
    return out


def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """Softmax with one division a row instead of one an element.

    The sum of exponentials is at least 1 (or NaN), so its reciprocal neither overflows nor is denormal. Narrow floats
    compute in float32. One rounding more than eager's division: at most 1.5 units in the last place.
    """
    wide = x.contiguous()
    if x.dtype in (torch.float16, torch.bfloat16):
        wide = wide.float()
    if wide.numel() == 0:
        powers = wide.exp()
    else:
        powers = (wide - wide.amax(dim, keepdim=True)).exp()
    out = powers * powers.sum(dim, keepdim=True).reciprocal()
    return out if half_to_float else out.to(x.dtype)


def nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """The gradient of `nll_loss` as a comparison with an iota instead of a scatter, so that it fuses.

    Shapes: self [N, C] or [C], target [N] or []; the result has self's shape and dtype. Exact.
    """
    dim = 0 if self.dim() < 2 else 1
    classes = torch.arange(self.shape[dim], device=self.device)
    shape = [1] * self.dim()
    shape[dim] = -1
    chosen = target.unsqueeze(dim)
    hit = (classes.view(shape) == chosen) & (chosen != ignore_index)
    scale = grad_output / total_weight if reduction == 1 else grad_output
    if reduction == 0 and self.dim() > 1:
        scale = scale.unsqueeze(dim)
    value = -scale
    if weight is not None:
        value = value * weight.view(shape)
    return torch.where(hit, value, 0.0).to(self.dtype)


def elu_backward(grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor) -> Tensor:
    """PyTorch's own rewriting lets the gradient of a NaN pass; eager's vectors make it NaN."""
    slope = alpha * scale
    inner = x + slope if is_result else slope * torch.exp(x * input_scale)
    return torch.where(x > 0, grad * scale, grad * input_scale * inner)


def hardtanh_backward(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """As eager's vectors: 0 where x is NaN."""
    return torch.where((x > low) & (x < high), grad, 0.0)


def soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """PyTorch's own rewriting, sigmoid(xy) - 1, loses every digit of a sample that is classified well."""
    value = -target * grad * torch.sigmoid(-target * x)
    return value / x.numel() if reduction == 1 else value


def pow_scalar(base: float, exponent: Tensor) -> Tensor:
    """base ** exponent, contiguous whatever the layout of the exponent, as eager makes it."""
    number = torch.scalar_tensor(base, dtype=torch.result_type(base, exponent), device=exponent.device)
    return torch.pow(number, exponent).contiguous()


def _laid_out_as_eager(batch_norm: Callable) -> Callable:
    """On the CPU the result of batch normalisation is contiguous or channels-last, also where the input is neither."""

    @functools.wraps(batch_norm)
    def wrapped(x: Tensor, *args: object) -> tuple[Tensor, ...]:
        out, *rest = batch_norm(x, *args)
        if x.device.type == "cpu":
            out = out.contiguous(memory_format=suggest_memory_format(x))
        return (out, *rest)

    return wrapped


def _contiguous_on_cpu(pointwise: Callable) -> Callable:
    """ATen's CPU kernel of this operator gives contiguous results, whatever its input's layout."""

    @functools.wraps(pointwise)
    def wrapped(x: Tensor) -> Tensor | tuple[Tensor, ...]:
        return pointwise(x.contiguous() if x.device.type == "cpu" else x)

    return wrapped


def _uniform_like(x: Tensor) -> Tensor:
    seed = torch.ops.optpass.seed(x.device)
    return torch.ops.optpass.philox_uniform(x.shape, seed, 0)


def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Dropout whose mask is a pure function of a seed drawn from PyTorch's generator: kept where u ≥ p."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = _uniform_like(x) >= p
    return torch.where(mask, x * (1.0 / (1.0 - p)), 0.0).to(x.dtype), mask


def bernoulli(x: Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Tensor:
    """1 with probability p, else 0, in x's shape and dtype; an explicit generator stays with ATen."""
    if generator is not None:
        return NotImplemented
    return (_uniform_like(x) < p).to(x.dtype)
