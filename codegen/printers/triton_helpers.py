"""Device functions that printed Triton kernels import: what `triton.language` lacks or does differently from the IR.

Only printed sources import this module (it needs Triton). Everything else that a kernel calls is `tl` itself or
`libdevice`, which each GPU back end brings; Triton's interpreter has no libdevice, so the test harness supplies one.
"""

import triton
import triton.language as tl


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def both(a, b):
    return a & b


@triton.jit
def maximum(a, b):
    """The larger operand; NaN if either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    """The smaller operand; NaN if either is NaN."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _first(better, a, i, b, j):
    """Picks ``(a, i)`` where it is better or, among equals, comes first; a NaN beats every number."""
    a_nan, b_nan = a != a, b != b
    better = (better & (a_nan == b_nan)) | (a_nan & (b == b))
    equal = (a == b) | (a_nan & b_nan)
    take = better | (equal & (i < j))
    return tl.where(take, a, b), tl.where(take, i, j)


@triton.jit
def argmax(a, i, b, j):
    return _first(a > b, a, i, b, j)


@triton.jit
def argmin(a, i, b, j):
    return _first(a < b, a, i, b, j)


@triton.jit
def welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    """Mean, sum of squared deviations and count of two sets together (Chan, Golub, LeVeque 1983)."""
    n = n_a + n_b
    share = tl.where(n == 0, 0.0, n_b / n)
    delta = mean_b - mean_a
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def floor_div(a, b):
    """Integer quotient rounded to minus infinity; Triton's own ``//`` truncates."""
    quotient = a // b
    remainder = a - quotient * b
    return tl.where((remainder != 0) & ((remainder < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def floor_mod(a, b):
    """Integer remainder with the sign of ``b``; Triton's own ``%`` has the sign of ``a``."""
    remainder = a % b
    return tl.where((remainder != 0) & ((remainder < 0) != (b < 0)), remainder + b, remainder)


@triton.jit
def pow_int(a, b):
    """``a**b`` of integers modulo 2^bits; for ``b < 0`` the truncated quotient 1/a^|b| (0 unless a is 1 or -1)."""
    odd = (b & 1) != 0
    inverse = tl.where(a == 1, a, tl.where(a == -1, tl.where(odd, a, a * a), a - a))
    # Bits of a non-negative exponent, the lowest first; 63 of them at most.
    result, base, exponent = a - a + 1, a, tl.where(b < 0, b - b, b)
    for _ in range(63):
        result = tl.where((exponent & 1) != 0, result * base, result)
        base = base * base
        exponent = exponent >> 1
    return tl.where(b < 0, inverse, result)


@triton.jit
def wrap_index(i, size):
    return tl.where(i < 0, i + size, i)


@triton.jit
def uniform(seed, counter):
    """First word of Philox-4x32-10 as a float32 in [0, 1); ``seed`` and ``counter`` are int64."""
    zero = (counter - counter).to(tl.uint32)
    low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    key_low, key_high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    word, _, _, _ = tl.philox_impl(low, high, zero, zero, key_low, key_high)
    return (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def to_float8e5(x):
    """Rounds to nearest even; beyond the range infinity, where hardware saturates."""
    bits = x.to(tl.float8e5).to(tl.int8, bitcast=True)
    sign = (x.to(tl.int32, bitcast=True) >> 24).to(tl.int8) & -128
    # 61440 lies halfway between 57344, the largest number, and what would be the next one.
    overflows = (tl.abs(x) >= 61440.0) & (x == x)
    return tl.where(overflows, sign | 0x7C, bits).to(tl.float8e5, bitcast=True)
