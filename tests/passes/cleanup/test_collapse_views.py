import pytest
import torch

from optpass.passes.cleanup.collapse_views import CollapseViews
from optpass.passes.cleanup.remove_dead_code import RemoveDeadCode

pytestmark = pytest.mark.null
PASSES = [CollapseViews, RemoveDeadCode]


@pytest.mark.parametrize(
    ("views", "left"),
    [
        (lambda x: x.view(24).view(2, 12), ["view.default"]),
        (lambda x: x.unsqueeze(0).squeeze(0), []),
        (lambda x: x.transpose(0, 1).transpose(0, 1), []),
        (lambda x: x.t().t(), []),
        (lambda x: x.view(2, 2, 6).permute(1, 0, 2).permute(1, 0, 2), ["view.default"]),
        (lambda x: x.view(2, 2, 6).permute(1, 0, 2).permute(0, 2, 1), ["view.default", "permute.default"]),
        (lambda x: x.view(2, 2, 6).transpose(0, 2).permute(2, 1, 0).view(4, 6), []),
        (lambda x: x.unsqueeze(0).view(24), ["view.default"]),
        (lambda x: x.view(24).view(2, 12).view(3, 8), ["view.default"]),
    ],
)
def test_fires(rewrite, views, left):
    out = rewrite(PASSES, lambda x: views(x.sin()).cos(), torch.randn(4, 6))
    assert out.ops == ["sin.default", *left, "cos.default"]


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes(rewrite, size, dynamic):
    def f(x):
        return x.sin().unsqueeze(1).permute(2, 1, 0).squeeze(1).t().cos()

    out = rewrite(PASSES, f, torch.randn(size, 3), dynamic=dynamic)
    assert out.ops[-1] == "cos.default"


def test_inner_view_with_another_user_stays(rewrite):
    def f(x):
        y = x.sin().t()
        return y.t().cos(), y.exp()

    assert "t.default" in rewrite(PASSES, f, torch.randn(4, 6)).ops


def test_returned_views_keep_their_aliasing(rewrite):
    def f(x):
        y = x.sin()
        return y, y.t().t(), x.unsqueeze(0).squeeze(0), x.view(24).view(2, 12)

    out = rewrite(PASSES, f, torch.randn(4, 6))
    assert out.reasons["round-trip"] == "it is returned as an object of its own"
    assert out.rules["reshape-of-reshape"] == 1


def test_same_shape_in_another_order_is_no_round_trip(rewrite):
    out = rewrite(PASSES, lambda x: x.sin().view(2, 2, 2).transpose(0, 1).cos(), torch.randn(2, 4))
    assert "transpose.int" in out.ops


def test_same_shape_at_another_offset_is_no_round_trip(rewrite):
    out = rewrite(PASSES, lambda x: x.sin().view(2, 2, 3)[1].view(2, 3).cos(), torch.randn(4, 3))
    assert "select.int" in out.ops


def test_expand_of_expand(rewrite):
    out = rewrite(PASSES, lambda x: x.sin().expand(4, 6).expand(2, 4, 6).cos(), torch.randn(1, 6))
    assert out.ops.count("expand.default") == 1


@pytest.mark.parametrize("make", [lambda x: x.t(), lambda x: x[::2], lambda x: x[:1].expand(4, 6)])
def test_non_contiguous(rewrite, make):
    x = make(torch.randn(4, 6))
    out = rewrite(PASSES, lambda x: x.unsqueeze(0).permute(2, 0, 1).squeeze(1).cos(), x)
    assert out.ops[-1] == "cos.default"


def test_a_reshape_that_copies_is_no_view(rewrite):
    out = rewrite(PASSES, lambda x: x.t().reshape(24).view(4, 6).cos(), torch.randn(4, 6))
    assert "clone.default" in out.ops


def test_a_conjugate_is_no_round_trip(rewrite):
    out = rewrite(PASSES, lambda x: torch.conj(x).t().t() * x, torch.randn(3, 3, dtype=torch.complex64))
    assert len(out.ops) > 1
