"""Pointwise ATen operators as kernel arithmetic: one rule per operator, ATen's promotion and corner cases included.

A rule is registered with the way its arguments are brought to one dtype:

* ``result``: the (widened) dtype of the node's result;
* ``compare``: ATen's promoted dtype of the arguments, values rounded as eager would have stored them;
* ``bool``: each argument compared with zero;
* ``own``: left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from optpass.codegen.emit import Emitter
from optpass.codegen.ir import Const
from optpass.errors import UnsupportedOp

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Rule:
    promote: str
    emit: Callable[..., int]
    cost: int = 1  # rough instructions per element; transcendental functions count 8 and more


RULES: dict[object, Rule] = {}


def rule(*overloads: object, promote: str = "result", cost: int = 1):
    def register(emit):
        for overload in overloads:
            RULES[overload] = Rule(promote, emit, cost)
        return emit

    return register


def _plain(name: str, *overloads: object, promote: str = "result", cost: int = 1) -> None:
    """An operator that is one IR operation of the same meaning."""
    rule(*overloads, promote=promote, cost=cost)(lambda e, *args: e.op(name, *args))


for _name in (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf "
    "erfc sqrt rsqrt"
).split():
    _plain(_name, getattr(aten, _name).default, cost=4 if "sqrt" in _name else 10)
for _name in ("neg", "abs"):
    _plain(_name, getattr(aten, _name).default)
_plain("copysign", aten.copysign.Tensor, aten.copysign.Scalar)
_plain("atan2", aten.atan2.default, cost=16)


@rule(aten.mul.Tensor, aten.mul.Scalar)
def _mul(e: Emitter, a: int, b: int) -> int:
    return e.op("and" if e.dtype(a) == torch.bool else "mul", a, b)


@rule(aten.add.Tensor, aten.add.Scalar)
def _add(e: Emitter, a: int, b: int, alpha: float = 1) -> int:
    if e.dtype(a) == torch.bool:
        return e.op("or", a, b) if alpha else a
    return e.add(a, b if alpha == 1 else e.mul(b, e.like(alpha, b)))


@rule(aten.sub.Tensor, aten.sub.Scalar)
def _sub(e: Emitter, a: int, b: int, alpha: float = 1) -> int:
    return e.sub(a, b if alpha == 1 else e.mul(b, e.like(alpha, b)))


@rule(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(e: Emitter, a: int, b: int, alpha: float = 1) -> int:
    return _sub(e, b, a, alpha)


@rule(aten.div.Tensor, aten.div.Scalar, cost=4)
def _div(e: Emitter, a: int, b: int) -> int:
    return e.div(a, b)


@rule(aten.reciprocal.default, cost=4)
def _reciprocal(e: Emitter, a: int) -> int:
    return e.div(e.like(1, a), a)


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode, cost=20)
def _div_mode(e: Emitter, a: int, b: int, rounding_mode: str | None = None) -> int:
    if rounding_mode is None:
        return e.div(a, b)
    if e.dtype(a).is_floating_point:
        return e.op("trunc", e.div(a, b)) if rounding_mode == "trunc" else floor_divide_float(e, a, b)
    return e.op("tdiv" if rounding_mode == "trunc" else "idiv", a, _nonzero(e, b))


@rule(aten.floor_divide.default, cost=20)
def _floor_divide(e: Emitter, a: int, b: int) -> int:
    return _div_mode(e, a, b, "floor")


@rule(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor, cost=20)
def _remainder(e: Emitter, a: int, b: int) -> int:
    if not e.dtype(a).is_floating_point:
        return e.op("imod", a, _nonzero(e, b))
    rest = e.op("fmod", a, b)
    zero = e.like(0, a)
    signs_differ = e.test("ne", e.test("lt", b, zero), e.test("lt", rest, zero))
    return e.where(e.test("and", e.test("ne", rest, zero), signs_differ), e.add(rest, b), rest)


@rule(aten.fmod.Tensor, aten.fmod.Scalar, cost=20)
def _fmod(e: Emitter, a: int, b: int) -> int:
    return e.op("fmod", a, b if e.dtype(a).is_floating_point else _nonzero(e, b))


def floor_divide_float(e: Emitter, a: int, b: int) -> int:
    """Floor division of floats as ATen defines it: exact where a is a multiple of b, IEEE for zero and infinity."""
    zero, one = e.like(0, a), e.like(1, a)
    rest = e.op("fmod", a, b)
    quotient = e.div(e.sub(a, rest), b)
    signs_differ = e.test("ne", e.test("lt", b, zero), e.test("lt", rest, zero))
    quotient = e.where(e.test("and", e.test("ne", rest, zero), signs_differ), e.sub(quotient, one), quotient)
    floor = e.op("floor", quotient)
    floor = e.where(e.test("gt", e.sub(quotient, floor), e.like(0.5, a)), e.add(floor, one), floor)
    signed_zero = e.op("copysign", zero, e.div(a, b))
    result = e.where(e.test("ne", quotient, zero), floor, signed_zero)
    return e.where(e.test("eq", b, zero), e.div(a, b), result)


def _nonzero(e: Emitter, b: int) -> int:
    """An integer divisor that cannot be 0: only a constant qualifies, since eager raises on division by 0."""
    ins = e.builder.body[b]
    if not isinstance(ins, Const) or ins.value == 0:
        raise UnsupportedOp("integer division by a value that may be 0 (eager raises there)")
    return b


@rule(aten.pow.Tensor_Scalar, cost=20)
def _pow_scalar(e: Emitter, a: int, exponent: float) -> int:
    """Eager's own shortcuts for small exponents."""
    number = exponent
    if not isinstance(number, int | float):
        raise UnsupportedOp("pow with a symbolic exponent")
    if e.dtype(a).is_floating_point:
        match float(number):
            case 0.5:
                return e.op("sqrt", a)
            case -0.5:
                return e.op("rsqrt", a)
            case -1.0:
                return e.div(e.like(1, a), a)
            case -2.0:
                return e.div(e.like(1, a), e.mul(a, a))
    if number == 2:
        return e.mul(a, a)
    if number == 3:
        return e.mul(e.mul(a, a), a)
    if not e.dtype(a).is_floating_point:
        raise UnsupportedOp("integer power")
    return e.op("pow", a, e.like(number, a))


@rule(aten.pow.Tensor_Tensor, aten.pow.Scalar, cost=20)
def _pow(e: Emitter, a: int, b: int) -> int:
    if not e.dtype(a).is_floating_point:
        raise UnsupportedOp("integer power")
    return e.op("pow", a, b)


@rule(aten.square.default)
def _square(e: Emitter, a: int) -> int:
    return e.mul(a, a)


@rule(aten.maximum.default)
def _maximum(e: Emitter, a: int, b: int) -> int:
    return e.op("or" if e.dtype(a) == torch.bool else "maximum", a, b)


@rule(aten.minimum.default)
def _minimum(e: Emitter, a: int, b: int) -> int:
    return e.op("and" if e.dtype(a) == torch.bool else "minimum", a, b)


@rule(aten.clamp.default, aten.clamp.Tensor)
def _clamp(e: Emitter, a: int, low: int | None = None, high: int | None = None) -> int:
    if low is not None:
        a = e.op("maximum", a, low)
    return a if high is None else e.op("minimum", a, high)


@rule(aten.clamp_min.default, aten.clamp_min.Tensor)
def _clamp_min(e: Emitter, a: int, low: int) -> int:
    return e.op("maximum", a, low)


@rule(aten.clamp_max.default, aten.clamp_max.Tensor)
def _clamp_max(e: Emitter, a: int, high: int) -> int:
    return e.op("minimum", a, high)


@rule(aten.relu.default)
def _relu(e: Emitter, a: int) -> int:
    """NaN passes; -0.0 stays on the CPU (x < 0 ? 0 : x) and becomes 0.0 on a GPU (the larger of x, 0), as eager's."""
    zero = e.like(0, a)
    if e.device == "cpu":
        return e.where(e.test("lt", a, zero), zero, a)
    return e.op("maximum", a, zero)


@rule(aten.sigmoid.default, cost=14)
def sigmoid(e: Emitter, a: int) -> int:
    one = e.like(1, a)
    return e.div(one, e.add(one, e.op("exp", e.op("neg", a))))


@rule(aten.silu.default, cost=14)
def _silu(e: Emitter, a: int) -> int:
    return e.div(a, e.add(e.like(1, a), e.op("exp", e.op("neg", a))))


@rule(aten.silu_backward.default, cost=16)
def _silu_backward(e: Emitter, grad: int, a: int) -> int:
    s, one = sigmoid(e, a), e.like(1, a)
    return e.mul(e.mul(grad, s), e.add(one, e.mul(a, e.sub(one, s))))


@rule(aten.sigmoid_backward.default)
def _sigmoid_backward(e: Emitter, grad: int, out: int) -> int:
    return e.mul(grad, e.mul(e.sub(e.like(1, out), out), out))


@rule(aten.tanh_backward.default)
def _tanh_backward(e: Emitter, grad: int, out: int) -> int:
    return e.mul(grad, e.sub(e.like(1, out), e.mul(out, out)))


@rule(aten.threshold_backward.default)
def _threshold_backward(e: Emitter, grad: int, a: int, threshold: int) -> int:
    return e.where(e.test("le", a, threshold), e.like(0, grad), grad)


@rule(aten.gelu.default, cost=16)
def _gelu(e: Emitter, a: int, approximate: str = "none") -> int:
    half, one = e.like(0.5, a), e.like(1, a)
    if approximate == "none":
        inner = e.op("erf", e.mul(a, e.like(math.sqrt(0.5), a)))
    else:
        cube = e.mul(e.mul(a, a), a)
        inner = e.add(a, e.mul(e.like(0.044715, a), cube))
        inner = e.op("tanh", e.mul(e.like(math.sqrt(2 / math.pi), a), inner))
    return e.mul(e.mul(half, a), e.add(one, inner))


@rule(aten.gelu_backward.default, cost=30)
def _gelu_backward(e: Emitter, grad: int, a: int, approximate: str = "none") -> int:
    half, one = e.like(0.5, a), e.like(1, a)
    if approximate == "none":
        cdf = e.mul(half, e.add(one, e.op("erf", e.mul(a, e.like(math.sqrt(0.5), a)))))
        density = e.op("exp", e.mul(e.mul(a, a), e.like(-0.5, a)))
        density = e.mul(density, e.like(1 / math.sqrt(2 * math.pi), a))
        return e.mul(grad, e.add(cdf, e.mul(a, density)))
    beta, kappa = e.like(math.sqrt(2 / math.pi), a), 0.044715
    square = e.mul(a, a)
    inner = e.mul(beta, e.add(a, e.mul(e.like(kappa, a), e.mul(square, a))))
    tanh = e.op("tanh", inner)
    left = e.mul(half, e.add(one, tanh))
    slope = e.mul(beta, e.add(one, e.mul(e.like(3 * kappa, a), square)))
    right = e.mul(e.mul(e.mul(half, a), e.sub(one, e.mul(tanh, tanh))), slope)
    return e.mul(grad, e.add(left, right))


for _name in ("floor", "ceil", "trunc"):

    @rule(getattr(aten, _name).default, promote="compare")
    def _to_integer(e: Emitter, a: int, name: str = _name) -> int:
        return e.op(name, a) if e.dtype(a).is_floating_point else a


@rule(aten.round.default, promote="compare")
def _round(e: Emitter, a: int) -> int:
    return e.op("rint", a) if e.dtype(a).is_floating_point else a


@rule(aten.sign.default, promote="compare")
def _sign(e: Emitter, a: int) -> int:
    if e.dtype(a) == torch.bool:
        return a
    zero = e.like(0, a)
    positive = e.cast(e.test("lt", zero, a), e.dtype(a))
    return e.sub(positive, e.cast(e.test("lt", a, zero), e.dtype(a)))


for _name in ["lt", "le", "gt", "ge", "eq", "ne"]:
    _packet = getattr(aten, _name)

    @rule(_packet.Tensor, _packet.Scalar, promote="compare")
    def _compare(e: Emitter, a: int, b: int, name: str = _name) -> int:
        return e.test(name, a, b)


for _name in ("isnan", "isinf", "signbit"):
    if hasattr(aten, _name):

        @rule(getattr(aten, _name).default, promote="compare")
        def _predicate(e: Emitter, a: int, name: str = _name) -> int:
            if e.dtype(a).is_floating_point:
                return e.test(name, a)
            return e.test("lt", a, e.like(0, a)) if name == "signbit" else e.const(False, torch.bool)


for _name in ("and", "or", "xor"):

    @rule(getattr(aten, f"logical_{_name}").default, promote="bool")
    def _logical(e: Emitter, a: int, b: int, name: str = _name) -> int:
        return e.test(name, a, b)

    _packet = getattr(aten, f"bitwise_{_name}")
    _plain(_name, _packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor)


@rule(aten.logical_not.default, promote="bool")
def _logical_not(e: Emitter, a: int) -> int:
    return e.test("not", a)


_plain("not", aten.bitwise_not.default)


@rule(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar, promote="own")
def _where(e: Emitter, condition: int, a: int, b: int) -> int:
    return e.where(condition, a, b)


@rule(aten.lerp.Scalar, aten.lerp.Tensor)
def _lerp(e: Emitter, a: int, b: int, weight: int) -> int:
    """ATen's two branches keep the end points exact."""
    one, distance = e.like(1, a), e.sub(b, a)
    small = e.test("lt", e.op("abs", weight), e.like(0.5, a))
    return e.where(small, e.add(a, e.mul(weight, distance)), e.sub(b, e.mul(distance, e.sub(one, weight))))


@rule(aten.addcmul.default)
def _addcmul(e: Emitter, a: int, b: int, c: int, value: float = 1) -> int:
    product = e.mul(b, c) if value == 1 else e.mul(e.mul(e.like(value, a), b), c)
    return e.add(a, product)


@rule(aten.addcdiv.default, cost=4)
def _addcdiv(e: Emitter, a: int, b: int, c: int, value: float = 1) -> int:
    return e.add(a, e.mul(e.like(value, a), e.div(b, c)))
