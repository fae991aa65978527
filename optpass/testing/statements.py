"""The statements that random programs are made of, as text with slots.

Slots: ``a`` any tensor, ``f`` a floating-point one, ``i`` an integer or bool one, ``b`` a bool one, ``w`` whole
numbers; then, related to the first of these: ``x`` a tensor that broadcasts with it, ``y`` one of its dtype, ``m`` a
mask, ``j`` integers to index with; ``d``, ``e`` a dimension, ``ds`` several, ``p`` a permutation of all, ``keep`` a
keepdim argument, ``s`` a small position, ``step`` of a slice, ``k``, ``n``, ``bit`` numbers, ``dtype``; ``last``,
``zero`` the size of a dimension, ``half`` a divisor of the last one.
"""

from __future__ import annotations

#: Statements that read no tensor's values.
SOURCES = [
    "torch.ones(3, 4)",
    "torch.full((2, 1), 1.5)",
    "torch.arange(5)",
    "torch.arange(3.0)",
    "torch.arange(1, 8, 2, dtype=torch.int32)",
    "torch.tensor(0.5)",
    "torch.zeros_like({a})",
    "torch.full_like({f}, 2)",
    "torch.arange({a}.shape[{d}])",
    "torch.ones({a}.shape[{d}], {a}.shape[{e}], dtype=torch.bool).tril()",
]

_METHODS = (
    "sin cos exp exp2 expm1 tanh sigmoid erf erfc sqrt rsqrt log log2 log10 log1p tan asin acos atan sinh cosh "
    "asinh acosh atanh reciprocal frac relu neg abs floor ceil trunc round sign square isnan isinf isfinite deg2rad"
)
_FUNCTIONS = "gelu silu elu selu celu leaky_relu hardshrink softshrink softplus mish logsigmoid tanhshrink softsign"

#: Statements by kind.
GROUPS = {
    "pointwise": [
        *[f"{{f}}.{name}()" for name in _METHODS.split()],
        *[f"F.{name}({{f}})" for name in _FUNCTIONS.split()],
        "F.gelu({f}, approximate='tanh')", "{a} + {x}", "{a} - {x}", "{a} * {x}", "{a} + {x}", "{a} * {x}",
        "{f} / {x}", "{a} / {n}", "{a} + {k}", "{a} * {k}", "{k} - {a}", "{n} / {f}", "torch.add({a}, {x}, alpha=2)",
        "torch.sub({f}, {x}, alpha=0.5)", "torch.rsub({a}, {x})", "{f} // {n}", "{f} % {n}", "{f} % {x}",
        "torch.fmod({f}, {n})", "torch.fmod({f}, {x})", "{i} // {n}", "{i} % {n}",
        "torch.div({a}, {n}, rounding_mode='trunc')", "torch.div({f}, {x}, rounding_mode='floor')", "{i} & {bit}",
        "{i} | {x}", "{i} ^ {x}", "~{i}", "{i}.abs()", "{i}.neg()", "{w} << {bit}", "{w} >> {bit}", "{i}.sign()",
        "{i}.square()", "{f} ** {k}", "{i} ** 2", "torch.pow({f}, {x})", "torch.pow(2.0, {f})",
        "torch.atan2({f}, {y})", "torch.copysign({f}, {x})", "torch.hypot({f}, {y})", "torch.logaddexp({f}, {y})",
        "torch.xlogy({f}, {x})", "torch.maximum({a}, {x})", "torch.minimum({a}, {x})", "torch.fmax({f}, {x})",
        "{a}.clamp(-1, 2)", "{f}.clamp(min=0.25)", "{a}.clamp(max=1)", "torch.clamp({f}, {y}, {y})", "{a} < {x}",
        "{a} >= {x}", "{a} == {x}", "{a} != {x}", "{a} > {k}", "{a} <= {k}", "{a} == {k}",
        "torch.logical_and({a}, {x})", "torch.logical_not({a})", "torch.logical_xor({a}, {x})",
        "torch.where({b}, {x}, {x})", "torch.where({a} > 0, {x}, {k})", "torch.where({a} > 0, {x}, {x})",
        "{a}.masked_fill({m}, {k})", "torch.lerp({f}, {y}, 0.3)", "torch.addcmul({f}, {y}, {y}, value=0.5)",
        "torch.addcdiv({f}, {y}, {y})", "{a}.to({dtype})", "{a}.to({dtype})", "{f}.nan_to_num()",
        "{f}.nan_to_num().signbit()", "{a}.clone()", "{a}.detach()", "{f}.heaviside({y})",
        "torch.threshold({f}, 0.1, 2.0)",
        "F.prelu({f}, {f}.new_full((1,), 0.3))", "{f}.float()", "{a}.double()", "{f}.bfloat16().float()",
    ],
    # Rounded in the same places by eager and by kernels that keep its rounding points.
    "rounded": [
        "{f} + {y}", "{f} - {y}", "{f} * {y}", "{f} / {y}", "{f} + {k}", "{f} * {k}",
        "{f} + 0.7", "{f} * 0.7", "0.1 - {f}",
        "{f} / 0.3", "{f} + torch.tensor(0.3)",
        "{f}.neg()", "{f}.abs()",
        "{f}.relu()", "{f}.sqrt()", "{f}.square()", "{f}.reciprocal()", "{f}.float()", "torch.maximum({f}, {y})",
        "{f}.clamp(-1, 2)", "torch.where({f} > {y}, {f}, {y})", "{f}.floor()", "{f}.round()", "{f}.bfloat16()",
        "{f} > {k}", "{f}.t()", "{f}.unsqueeze({d})", "{f}.flip({d})", "torch.cat([{f}, {y}], {d})",
    ],
    "view": [
        "{a}.reshape(-1)", "{a}.reshape(-1, {last})", "{a}.reshape({zero}, -1)",
        "{a}.reshape(*{a}.shape[:-1], {half}, -1)", "{a}.reshape(*{a}.shape[:-1], -1, {half})", "{a}.permute({p})",
        "{a}.permute({p})", "{a}.transpose({d}, {e})", "{a}.transpose({d}, {e}).contiguous()", "{a}.t()", "{a}.mT",
        "{a}.unsqueeze({d})", "{a}.squeeze()", "{a}.squeeze({d})", "{a}[{s}:]", "{a}[..., {s}:]", "{a}[..., :{s}]",
        "{a}[::{step}]", "{a}[..., {s}::{step}]", "{a}[{s}]", "{a}[..., {s}]", "{a}.select({d}, {s})",
        "{a}.narrow({d}, 0, 1)", "{a}.flip({d})", "{a}.flip({ds})", "{a}.expand(2, *{a}.shape)",
        "{a}.unsqueeze({d}).expand(*[-1 if n != 1 else 3 for n in {a}.unsqueeze({d}).shape])", "{a}.expand_as({x})",
        "{a}.broadcast_to((2, *{a}.shape))", "{a}.chunk(2, {d})[0]", "{a}.split(2, {d})[-1]", "{a}.unbind({d})[0]",
        "{a}.tensor_split(2, {d})[-1]", "{a}.diagonal()", "{a}.diagonal(1, {d}, {e})", "{a}.unfold({d}, 2, 1)",
        "{a}.movedim({d}, {e})", "{a}.flatten()", "{a}.flatten(0, 1)", "{a}.view({a}.shape)", "{a}.roll(1, {d})",
        "{a}.repeat(2, *[1] * ({a}.dim() - 1))", "{a}.repeat_interleave(2, {d})", "{a}.swapaxes({d}, {e})",
        "{a}.ravel()", "{a}.contiguous()", "{a}.tile(2)", "{a}.view_as({a})", "{a}.diag_embed()",
    ],
    "join": [
        "torch.cat([{a}, {x}], {d})", "torch.cat([{a}, {a}[..., :1], {a}], -1)", "torch.cat([{a}, {a} * 2], {d})",
        "torch.stack([{a}, {x}], {d})", "torch.stack([{a}, {a}])", "F.pad({a}, (1, 2))",
        "F.pad({a}, (1, 0, 2, 1), value=0.5)", "F.pad({a}, (-1, 1))", "{a}.tril()", "{a}.triu(1)",
        "torch.hstack([{a}, {x}])", "torch.cat([-{f}[..., {half}:], {f}[..., :{half}]], -1)",
        "torch.slice_scatter({a}, {a}[1:], 0, 1)", "torch.select_scatter({a}, {a}[0], 0, -1)",
        "torch.slice_scatter({a}, {a}[..., ::2] + 1, -1, 0, None, 2)",
    ],
    "gather": [
        "F.embedding({j}.remainder({zero}), {a})", "{a}[{j}.remainder({zero})]", "{a}[..., {j}.remainder({last})]",
        "{a}.gather({d}, torch.zeros_like({a}, dtype=torch.int64))", "{a}.gather(-1, {a}.argmax(-1, keepdim=True))",
        "{a}.index_select(0, torch.arange({zero}).flip(0))",
        "{a}[torch.arange({zero}), ..., torch.arange({zero}) % {last}]",
        "torch.take_along_dim({a}, {a}.argsort({d}), {d})", "{a}[[0, -1, 0]]", "{a}[:, [0]]",
    ],
    "reduce": [
        "{a}.sum()", "{a}.sum({d}{keep})", "{a}.sum({ds}{keep})", "{f}.mean()", "{f}.mean({d}{keep})",
        "{f}.mean({ds}{keep})", "{f}.var({d}{keep})", "{f}.var({ds}, correction=0)", "{f}.std({d}{keep})",
        "{a}.amax({d}{keep})", "{a}.amin({ds}{keep})", "{a}.amax()", "{a}.argmax({d}{keep})", "{a}.argmin({d})",
        "{a}.argmax()", "{a}.any()", "{a}.all({d})", "{a}.any({d}{keep})", "{f}.prod({d})", "{a}.max({d})[0]",
        "{a}.min({d})[1]", "{f}.logsumexp({d}{keep})", "{f}.logsumexp({ds})", "{f}.softmax({d})", "{f}.softmax(-1)",
        "{f}.log_softmax({d})", "F.layer_norm({f}, ({last},))",
        "F.layer_norm({f}, ({last},), {f}.new_ones({last}), {f}.new_zeros({last}))", "F.rms_norm({f}, ({last},))",
        "F.group_norm({f}, 1)", "F.normalize({f}, dim={d})", "{f}.norm()", "{f}.norm(dim={d})", "{f}.norm(1, {d})",
        "{a}.count_nonzero({d})", "{f}.nansum({d})", "{f} - {f}.mean({d}, keepdim=True)",
        "torch.var_mean({f}, {d})[0]", "{f}.sum({d}, dtype=torch.float64)", "F.mse_loss({f}, {y})",
        "F.smooth_l1_loss({f}, {y})", "{f}.aminmax(dim={d})[0]",
        "F.cross_entropy({f}, torch.zeros_like({f}[:, 0], dtype=torch.int64))", "{f}.cumsum({d})", "{f}.sort({d})[0]",
        "F.glu({f}, {d})", "F.softmin({f}, {d})", "F.batch_norm({f}, None, None, training=True)",
        "{f}.softmax(-1).amax(-1, keepdim=True) * {f}", "({f} - {f}.amax({d}, keepdim=True)).exp().sum({d}{keep})",
    ],
    "product": [
        "{f} @ {f}.mT", "{f}.mT @ {f}", "F.linear({f}, {f})", "{f} @ torch.ones({last}, 3, dtype={f}.dtype)",
        "torch.einsum('...i,...i->...', {f}, {f})", "torch.outer({f}.flatten()[:5], {f}.flatten()[:3])",
        "F.scaled_dot_product_attention({f}, {f}, {f})",
    ],
}  # fmt: skip

MUTATIONS = [
    "{f} += {k}", "{a} *= {n}", "{a} += {x}", "{f} -= {x}", "{a}.add_({x})", "{f}.mul_({x})", "{a}.zero_()",
    "{a}.fill_({k})", "{a}.copy_({x})", "{f}.relu_()", "{f}.sigmoid_()", "{a}.clamp_(-1, 1)",
    "{a}.masked_fill_({m}, {k})", "{a}[0] = {k}", "{a}[..., {s}] = {k}", "{a}[..., :1] += {n}", "{a}[{s}:] = {x}",
    "{a}.t().add_({k})", "{a}.transpose({d}, {e}).mul_({k})", "{a}[..., ::2].zero_()", "{a}.view(-1)[:2] = {k}",
]  # fmt: skip
