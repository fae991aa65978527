"""Eager execution with its roundings disturbed, or done in float64: the yardsticks of `check_program`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from optpass.decompositions import table
from optpass.torch_private import TorchDispatchMode, tree_map

aten = torch.ops.aten


def _operators(names: str) -> set[object]:
    """ATen's operators of these names, as far as this version of PyTorch has them."""
    return {getattr(aten, name) for name in names.split() if hasattr(aten, name)}


#: Operators whose result is made of their arguments' values: nothing is rounded.
EXACT = _operators(
    "clone copy copy_ cat stack where maximum minimum clamp clamp_min clamp_max clamp_ relu relu_ neg neg_ abs "
    "sign floor ceil round trunc index gather embedding index_select max amax min amin sort masked_fill "
    "masked_fill_ constant_pad_nd flip roll slice_scatter select_scatter zeros ones full zeros_like ones_like "
    "full_like fill_ zero_ arange eye tril triu repeat lift_fresh lift_fresh_copy new_zeros new_ones new_full "
    "empty empty_like new_empty empty_strided new_empty_strided scalar_tensor slice_backward select_backward "
    "threshold_backward index_put index_put_ scatter scatter_ isnan eq ne lt le gt ge _local_scalar_dense "
    "detach_ resize_ set_ masked_select bernoulli rand unfold_copy value_selecting_reduction_backward "
    "constant_pad_nd_backward embedding_dense_backward"
)
#: Operators that round on the way to their result: what they read is disturbed too.
COMPOUND = _operators(
    "sum mean var std var_mean std_mean prod mm bmm addmm baddbmm dot mv cumsum logsumexp _softmax "
    "_log_softmax native_layer_norm native_group_norm native_batch_norm norm linalg_vector_norm convolution "
    "embedding_dense_backward native_layer_norm_backward native_group_norm_backward native_batch_norm_backward "
    "_softmax_backward_data nansum _log_softmax_backward_data addcmul addcdiv lerp add sub rsub gelu "
    "gelu_backward silu silu_backward mish mish_backward softplus softplus_backward elu elu_backward logaddexp "
    "hypot log_sigmoid_forward log_sigmoid_backward sigmoid_backward tanh_backward mse_loss mse_loss_backward "
    "smooth_l1_loss smooth_l1_loss_backward glu glu_backward _fused_rms_norm xlogy "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward logit"
)

#: Operators that lose digits inside, by a logarithm near 1 or by cancellation: they are disturbed piece by piece.
ILL_CONDITIONED = _operators(
    "_log_softmax logsumexp binary_cross_entropy_with_logits log_sigmoid_forward logaddexp logit"
)


class Perturbed(TorchDispatchMode):
    """Moves every rounded floating-point result by one unit in the last place, up or down at random.

    Views and results that only select or copy are left alone, and so are zeros, infinities and NaN.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in ILL_CONDITIONED and func in (pieces := table("fast")):
            with self:
                return pieces[func](*args, **kwargs)
        if func.overloadpacket in COMPOUND:
            args = tree_map(self._moved, args)
        out = func(*args, **kwargs)
        if func.overloadpacket in EXACT:
            return out
        returns = func._schema.returns
        results = out if isinstance(out, list | tuple) else [out]
        if any(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            return out
        for result, kind in zip(results, returns):
            if kind.alias_info is not None and isinstance(result, Tensor):
                result.copy_(self._moved(result))
        return tree_map(self._moved, out) if all(r.alias_info is None for r in returns) else out

    def _moved(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.numel() == 0 or x._is_zerotensor():
            return x
        up = torch.rand(x.shape, generator=self.generator) < 0.5
        unit = torch.finfo(x.dtype).eps
        moved = torch.where(up, x * (1 + unit), x * (1 - unit))
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(moved) if _is_dense(x) else moved


def _is_dense(x: Tensor) -> bool:
    return 0 not in x.stride()


@contextmanager
def double_precision():
    """Conversions to a narrower floating-point dtype, and tensors made in one, are float64 meanwhile."""
    with _Wide():
        previous = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(previous)


class _Wide(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        widen = lambda a: torch.float64 if isinstance(a, torch.dtype) and a.is_floating_point else a
        kwargs = {k: widen(v) for k, v in (kwargs or {}).items()}
        return func(*(widen(a) for a in args), **kwargs)
