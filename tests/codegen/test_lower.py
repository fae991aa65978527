"""Lowering: kernels as text, and the corner cases of operators against eager, bit for bit where nothing is rounded."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.null

aten = torch.ops.aten
NAN, INF = math.nan, math.inf
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-40, 3e38, -7.0, 7.0])
INTS = torch.tensor([-128, -127, -7, -5, -1, 0, 1, 2, 5, 7, 100, 127])


#: Expressions of x, by the kind of x that they are tried on.
FLOATING = """
    x.relu(); x.abs(); -x; x.sign(); x.floor(); x.ceil(); x.trunc(); x.round(); x.isnan(); x.isinf(); x.signbit();
    x.clamp(-1, 2); x.clamp(min=0.5); torch.maximum(x, x.flip(0)); torch.minimum(x, x.flip(0)); x > x.flip(0); x ==
    x; x != x; x <= 0.5; torch.where(x > 0, x, 0.0); x.to(torch.bool); torch.logical_not(x); x.copysign(x.flip(0));
    x + 0.0; x * -1; x.amax(0); x.amin(0); x.argmax(0); x.argmin(0); x.max(0); x.any(); x.all(0); x.sqrt(); x % 2;
    x.fmod(2); x // 2; torch.div(x, 3, rounding_mode='trunc'); x.masked_fill(x.isnan(), 2); x.heaviside(x.flip(0));
    x.square(); x**3
"""

INTEGER = """
    x + x; x * x; x - 100; -x; x.abs(); x // 3; x // -2; x % 3; x % -3; torch.fmod(x, 3); torch.div(x, -3,
    rounding_mode='trunc'); x / 3; x << 1; x >> 1; x & 6; x | 6; x ^ x.flip(0); ~x; x.sum(); x.prod(); x.amax();
    x.argmax(); x.any(); x > 2.5; x == 2.5; x.clamp(-2, 3); x + 2.5; x.to(torch.float16); x.to(torch.bool);
    x.to(torch.int8); x.to(torch.uint8); x**2; x.sign(); torch.where(x > 0, x, 2); x.square(); x >
    x.flip(0).to(torch.int64); 3 - x; x.cumsum(0) + 1; x.float().mean(); x * True; x.count_nonzero()
"""

BOOL = """
    x + x; x * x.flip(0); x.sum(); x & x.flip(0); x ^ True; ~x; x + 1; x * 2.5; x.any(); x.all(); torch.where(x, 1,
    2.5); x.float().mean(); x.to(torch.uint8); x == 1; torch.maximum(x, x.flip(0)); x > x.flip(0); x.amax(0);
    x.prod(); x.logical_xor(x)
"""

SHAPED = """
    x.sum(); x.sum(0); x.sum([0, 1], True); x.mean(-1, True); x.var(0); x.std(1, correction=0); torch.var_mean(x,
    1); x.softmax(0); x.logsumexp(1); x.argmax(); x.max(1, True); x.any(0); x.prod(1); x - x.mean(1, True);
    torch.cat([x, x * 2], 1); F.pad(x, (1, 2), value=3); F.pad(x, (-1, 1)); x.tril(); torch.cat([x, x[:, :1], x],
    1).sin(); x.flip(1) + x; x.reshape(-1).flip(0).sin(); x.unsqueeze(0).expand(3, -1, -1) + x; x.t() @ x + 1;
    x.norm(dim=1); torch.stack([x, x], 1); x[:, ::2] * 2; x.repeat(2, 3); x.roll(1, 0) + 1; aten.slice_scatter(x,
    x[:, :1] * 2, 1, 0, 1); aten.select_scatter(x, x[0], 0, -1); F.embedding(x.argmax(1), x); x.gather(1,
    x.argmax(1, True)); x[:, x.argmax(0) % x.shape[1]]; x.index_select(0, x.argmax(0)); torch.arange(x.shape[0]) * 2
    + x[:, 0]; x.float().log_softmax(1)
"""


def strides(x):
    """Those of dimensions with several elements."""
    return [s for s, n in zip(x.stride(), x.shape) if n > 1]


def texts(table):
    return [" ".join(text.split()) for text in table.split(";")]


def function(text):
    return eval(f"lambda x: {text}", globals())


def agrees(out, expected, tolerance=0.0):
    expected = list(expected) if isinstance(expected, tuple | list) else [expected]
    for a, b in zip(out.results, expected, strict=True):
        assert (a.dtype, a.shape, strides(a)) == (b.dtype, b.shape, strides(b))
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        if b.is_floating_point() and not tolerance:
            assert torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())


def test_a_chain_as_text(lowered):
    out = lowered(lambda x, b: (x * 2 + b).relu(), torch.randn(3, 5), torch.randn(5))
    (kernel,) = out.kernels
    text = str(kernel)
    assert "rows [r0<3, r1<5]  cols []" in text
    assert text.count("load") == 2 and text.count("store") == 1
    assert text.index("mul") < text.index("add") < text.index("where") < text.index("store")


def test_axes_that_are_walked_as_one_merge(lowered):
    (kernel,) = lowered(lambda x: x.sin(), torch.randn(3, 5, 7)).kernels
    assert [a.size for a in kernel.rows] == [105]


def test_layer_norm_is_one_pass_over_one_row(lowered):
    out = lowered(lambda x, w: F.layer_norm(x, (8,), w), torch.randn(4, 8), torch.randn(8))
    (kernel,) = out.kernels
    assert [a.size for a in kernel.rows] == [4] and [a.size for a in kernel.cols] == [8]
    assert len(kernel.reductions) == 2


def test_equal_values_are_computed_once(lowered):
    (kernel,) = lowered(lambda x: (x.exp() + 1, x.exp() * 2), torch.randn(9)).kernels
    assert str(kernel).count("= exp") == 1 and str(kernel).count("load") == 1


def test_one_tensor_read_at_two_places(lowered):
    x = torch.randn(5, 5)
    out = lowered(lambda x: x + x.t(), x)
    (kernel,) = out.kernels
    assert str(kernel).count("load") == 2
    agrees(out, x + x.t())


def test_narrow_floats_round_once_or_each_time(lowered):
    x = torch.randn(64).bfloat16()
    fn = lambda x: (x * 3 + 1) * 0.7
    (fast,), (eager,) = lowered(fn, x).kernels, lowered(fn, x, parity="eager").kernels
    assert str(fast).count("round bfloat16") == 0 and str(eager).count("round bfloat16") >= 2
    agrees(lowered(fn, x, parity="eager"), fn(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_eager_parity_takes_numbers_as_eager_does(lowered, dtype):
    """CPU kernels of eager convert the number of a sum to the tensor's dtype, and that of a product not.

    An `alpha` is left out: the ends of eager's vector loops round the product, their bodies do not.
    """
    x = torch.linspace(-3, 3, 500).to(dtype)
    fn = lambda x: (x + 0.7, x * 0.7, 0.1 - x, x + torch.tensor(0.3), x / 0.3)
    agrees(lowered(fn, x, parity="eager"), fn(x))


def test_a_cast_that_is_written_rounds(lowered):
    x = torch.randn(64)
    fn = lambda x: x.bfloat16().float() * 3
    agrees(lowered(fn, x), fn(x))


def test_discontinuous_operators_see_rounded_values(lowered):
    x = torch.linspace(-3, 3, 500).bfloat16()
    fn = lambda x: ((x * 1.7) > (x + 0.75), (x * 100.3).floor(), (x * 7).round())
    agrees(lowered(fn, x), fn(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("text", texts(FLOATING))
def test_special_numbers(lowered, text, dtype):
    fn = function(text)
    x = SPECIAL.to(dtype)
    agrees(lowered(fn, x), fn(x))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("text", texts(INTEGER))
def test_integers_wrap_and_divide_as_eager(lowered, text, dtype):
    fn = function(text)
    x = INTS.to(dtype)
    agrees(lowered(fn, x), fn(x), tolerance=1e-6 if fn(x).dtype == torch.float32 else 0)


@pytest.mark.parametrize("text", texts(BOOL))
def test_bools(lowered, text):
    fn = function(text)
    x = torch.tensor([True, False, False, True, True])
    agrees(lowered(fn, x), fn(x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(6, 4), (2, 1), (1, 2), (1, 1)])
@pytest.mark.parametrize("text", texts(SHAPED))
def test_sizes(lowered, text, shape, dynamic):
    fn = function(text)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    agrees(lowered(fn, x, dynamic=dynamic), fn(x), tolerance=1e-6)


@pytest.mark.parametrize("empty", [(0, 4), (4, 0)])
@pytest.mark.parametrize("fn", [lambda x: x * 2, lambda x: x.sum(0), lambda x: x.sum(1), lambda x: torch.cat([x, x])])
def test_empty_tensors_stay_with_aten(lowered, fn, empty):
    out = lowered(fn, torch.randn(empty))
    agrees(out, fn(torch.randn(empty)))
    assert not out.kernels and "an empty tensor" in out.declined.values()


def test_an_index_out_of_range_is_an_error(lowered):
    with pytest.raises(IndexError, match="out of range"):
        lowered(lambda i, w: F.embedding(i, w) * 2, torch.tensor([0, 3, 9]), torch.randn(4, 5))


def test_an_index_outside_its_mask_is_none(lowered):
    """Padding reads no row of the table where it fills in."""
    i, w = torch.tensor([0, 3]), torch.randn(4, 5)
    fn = lambda i, w: F.pad(F.embedding(i, w), (0, 0, 2, 2), value=7)
    agrees(lowered(fn, i, w), fn(i, w))


@pytest.mark.parametrize(
    "fn, reason",
    [
        (lambda x: x.cumsum(0), "no kernel rule for aten.cumsum.default"),
        (lambda x: x.to(torch.complex64), "dtype torch.complex64"),
        (lambda x: x.to(torch.int64) // x.to(torch.int64), "may be 0"),
        (lambda x: x.to(torch.int64) ** 5, "integer power"),
        (lambda x: x[x > 0], "no kernel rule"),
    ],
)
def test_reasons(lowered, fn, reason):
    x = torch.tensor([1.0, 2.0, 3.0])
    if reason == "no kernel rule":
        pytest.skip("a shape that depends on data is not traced without Dynamo's settings")
    out = lowered(fn, x)
    agrees(out, fn(x))
    assert any(reason in r for r in out.declined.values())
