"""Our own rewritings of operators against the operators: same numbers, same metadata."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from optpass import decompositions
from optpass.decompositions import table
from optpass.testing.runtimes import interpreted

pytestmark = pytest.mark.null
aten = torch.ops.aten


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5, 7), (7,), (5, 7, 3), (5, 7, 2, 3)])
def test_nll_loss_backward(shape, reduction, weighted):
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    target = torch.randint(0, 7, shape[:1] + shape[2:] if len(shape) > 1 else ())
    if target.dim():
        target.view(-1)[0] = -100
    weight = torch.rand(7) if weighted else None
    loss = F.nll_loss(x, target, weight, reduction=("none", "mean", "sum")[reduction])
    grad = torch.randn_like(loss)
    (expected,) = torch.autograd.grad(loss, x, grad)
    kept = target != -100
    total = (weight[target.clamp(0)] * kept).sum() if weighted else kept.sum().float()
    actual = decompositions.nll_loss_backward(grad, x.detach(), target, weight, reduction, -100, total)
    torch.testing.assert_close(actual, expected)


SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5] * 8)


@pytest.mark.parametrize(
    "op, args",
    [
        (aten.elu_backward.default, (1.3, 1.0, 1.0, False)),
        (aten.elu_backward.default, (1.3, 1.0, 1.0, True)),
        (aten.elu_backward.default, (1.67, 1.05, 1.0, False)),
        (aten.elu_backward.default, (1.0, 1.0, 0.7, False)),
    ],
)
def test_elu_backward(op, args):
    grad = torch.linspace(-2, 2, len(SPECIAL))
    torch.testing.assert_close(table("fast")[op](grad, *args, SPECIAL), op(grad, *args, SPECIAL), equal_nan=True)


def test_hardtanh_backward():
    grad = torch.linspace(-2, 2, len(SPECIAL))
    op = aten.hardtanh_backward.default
    torch.testing.assert_close(
        table("fast")[op](grad, SPECIAL, -1.0, 1.0), op(grad, SPECIAL, -1.0, 1.0), equal_nan=True
    )


@pytest.mark.parametrize("base", [2, 2.5, 0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_pow_of_a_number(base, dtype):
    x = torch.arange(6).to(dtype).view(2, 3).t()
    actual, expected = decompositions.pow_scalar(base, x), torch.pow(base, x)
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels-last"])
def test_batch_norm_is_laid_out_as_eager(layout):
    from optpass.testing import tensor

    x = tensor((3, 4, 5, 6), layout=layout)
    op = aten._native_batch_norm_legit.no_stats
    actual, expected = table("fast")[op](x, None, None, True, 0.1, 1e-5), op(x, None, None, True, 0.1, 1e-5)
    torch.testing.assert_close(actual, expected)
    assert actual[0].stride() == expected[0].stride()


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels-last"])
def test_log_sigmoid_is_laid_out_as_eager(layout):
    from optpass.testing import tensor

    x = tensor((3, 4, 5, 6), layout=layout)
    op = aten.log_sigmoid_forward.default
    for actual, expected in zip(table("fast")[op](x), op(x), strict=True):
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == expected.stride()


def test_random_operators_stay_with_aten_under_eager_parity():
    random = {aten.native_dropout.default, aten.bernoulli.p}
    assert random <= table("fast").keys() and not random & table("eager").keys()


def test_dropout_at_the_ends():
    x = torch.randn(9)
    for p, train, kept in ((0.5, False, True), (0.0, True, True), (1.0, True, False)):
        out, mask = decompositions.native_dropout(x, p, train)
        assert bool(mask.all()) is kept and torch.equal(out, x if kept else torch.zeros(9))
        assert out is not x


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_soft_margin_loss_backward_keeps_its_digits_far_from_the_margin(reduction):
    grad, x, target = torch.tensor(0.7), torch.tensor([30.0, -30.0, 0.5, 60.0]), torch.tensor([1.0, -1.0, -1.0, 1.0])
    actual = decompositions.soft_margin_loss_backward(grad, x, target, reduction)
    expected = aten.soft_margin_loss_backward(grad.double(), x.double(), target.double(), reduction)
    torch.testing.assert_close(actual, expected.float(), rtol=1e-6, atol=0)


def test_a_gradient_that_eager_gives_no_memory():
    x = torch.randn(4, requires_grad=True)
    with interpreted():
        (got,) = torch.autograd.grad(torch.compile(torch.sgn, backend="optpass")(x), x, torch.ones(4))
    assert got.untyped_storage().nbytes() and not got.any()
