import itertools
import math

import pytest
import torch

from optpass.passes.cleanup.collapse_casts import CollapseCasts, holds
from optpass.passes.cleanup.remove_dead_code import RemoveDeadCode

pytestmark = pytest.mark.null
PASSES = [CollapseCasts, RemoveDeadCode]
cast = torch.ops.aten._to_copy
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
bf16, f16, f32, f64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def chain(*dtypes):
    def f(x):
        y = -x
        for dtype in dtypes:
            y = cast(y, dtype=dtype)
        return y * y

    return f


def odd_numbers(dtype):
    numbers = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 6e-8, 3e38, 65504.0, 1 / 3]
    return torch.tensor(numbers, dtype=f64).to(dtype)


@pytest.mark.parametrize(
    ("start", "dtypes", "casts"),
    [
        (bf16, [f32, bf16], 0),
        (f16, [f32, f64, f16], 0),
        (bf16, [f32, f16], 1),
        (bf16, [f32, f64, f32], 1),
        (f32, [bf16, f32], 2),
        (f32, [f16, bf16], 2),
        (f16, [bf16, f32], 2),
    ],
)
def test_floats(rewrite, start, dtypes, casts):
    assert rewrite(PASSES, chain(*dtypes), odd_numbers(start)).ops.count("_to_copy.default") == casts


@pytest.mark.parametrize(
    ("start", "dtypes", "casts"),
    [
        (torch.int32, [torch.int64, torch.int32], 0),
        (torch.int64, [torch.int32, torch.int64], 2),
        (torch.uint8, [torch.int32, torch.int8], 1),
        (torch.int16, [f32, f16], 1),
        (torch.int32, [f64, f16], 2),
        (torch.int32, [f64, torch.int8], 2),
        (torch.int32, [f32, torch.int32], 2),
        (torch.int8, [bf16, torch.int8], 0),
    ],
)
def test_integers(rewrite, start, dtypes, casts):
    limits = torch.iinfo(start)
    x = torch.tensor([limits.min + 1, limits.max, 0, 1], dtype=start)
    assert rewrite(PASSES, chain(*dtypes), x).ops.count("_to_copy.default") == casts


def test_float_to_integer_stays(rewrite):
    out = rewrite(PASSES, chain(f32, torch.int8), torch.tensor([1.5, -3.0], dtype=f16))
    assert out.ops.count("_to_copy.default") == 2
    assert "otherwise" in out.reasons["cast-of-cast"]


def test_rounding_is_the_reason(rewrite):
    out = rewrite(PASSES, chain(bf16, f32), torch.randn(3))
    assert out.reasons["cast-of-cast"] == "torch.bfloat16 does not hold every torch.float32: the conversion rounds"


def test_a_returned_conversion_of_an_input_stays(rewrite):
    out = rewrite(PASSES, lambda x: cast(cast(x, dtype=f32), dtype=bf16), torch.randn(3).bfloat16())
    assert out.ops.count("_to_copy.default") == 2
    assert "returned" in out.reasons["cast-of-cast"]


def test_branch_and_returned_intermediate(rewrite):
    def f(x):
        wide = cast(-x, dtype=f32)
        return wide, cast(wide, dtype=bf16) + 1, wide * 2

    assert rewrite(PASSES, f, torch.randn(3).bfloat16()).rules["cast-of-cast"] == 1


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_and_strides(rewrite, size, dynamic):
    x = torch.randn(3, size).bfloat16().t()
    assert rewrite(PASSES, chain(f32, bf16), x, dynamic=dynamic).rules["cast-of-cast"] == 1


@pytest.mark.parametrize(
    ("wide", "narrow"),
    list(itertools.permutations([torch.bool, torch.uint8, torch.int8, torch.int16, f16, bf16, *FLOAT8], 2)),
)
def test_holds_means_that_every_value_comes_back(wide, narrow):
    if narrow == torch.bool:
        values = torch.tensor([False, True])
    else:
        count = 1 << (8 * torch.empty((), dtype=narrow).element_size())
        bits = torch.arange(count).to(torch.uint8 if count == 256 else torch.int16)
        values = bits.view(narrow)
    numbers = values.to(f64)
    back = values.to(wide).to(f64)
    same = bool(((numbers == back) | (numbers.isnan() & back.isnan())).all())
    assert holds(wide, narrow) == same
