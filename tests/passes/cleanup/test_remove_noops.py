import math

import pytest
import torch

from optpass.passes.cleanup.remove_noops import RemoveNoops

pytestmark = pytest.mark.null
aten = torch.ops.aten


@pytest.mark.parametrize(
    "noop",
    [
        lambda x: x * 1,
        lambda x: x * 1.0,
        lambda x: x / 1,
        lambda x: x**1,
        lambda x: x - 0.0,
        lambda x: x + -0.0,
        lambda x: x.clone(),
        lambda x: x.view(4, 6),
        lambda x: x.expand(4, 6),
        lambda x: x.permute(0, 1),
        lambda x: x[:],
        lambda x: x.detach(),
        lambda x: torch.cat([x]),
        lambda x: torch.where(x > 0, x, x),
        lambda x: x.repeat(1, 1),
        lambda x: torch.constant_pad_nd(x, [0, 0]),
        lambda x: torch.neg(torch.neg(x)),
        lambda x: torch.ops.aten._to_copy(x, dtype=torch.float32),
        lambda x: torch.ops.aten.copy(x, x),
    ],
)
@pytest.mark.parametrize("shape", [(4, 6)])
def test_fires(rewrite, noop, shape):
    x = torch.randn(shape)
    x[0, :4] = torch.tensor([math.nan, math.inf, -0.0, 0.0])
    out = rewrite(RemoveNoops, lambda x: noop(x.sin()).cos(), x)
    assert [op for op in out.ops if op not in ("gt.Scalar", "neg.default")] == ["sin.default", "cos.default"]


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("dynamic", [False, True])
def test_chain_of_three_at_any_size(rewrite, size, dynamic):
    out = rewrite(RemoveNoops, lambda x: ((x.sin() * 1).clone() / 1.0).cos(), torch.randn(size, 3), dynamic=dynamic)
    assert out.rules["times-one"] == 2 and out.rules["copy-of-same"] == 1


def test_branch(rewrite):
    def f(x):
        y = x.sin()
        return (y * 1).cos() + y.clone().exp()

    assert rewrite(RemoveNoops, f, torch.randn(3)).ops == ["sin.default", "cos.default", "exp.default", "add.Tensor"]


def test_zero_plus_float_keeps_the_sign_of_zero(rewrite):
    out = rewrite(RemoveNoops, lambda x: (x.sin() + 0.0).cos(), torch.tensor([-0.0, 1.0]))
    assert "add.Tensor" in out.ops
    assert out.reasons["plus-zero"] == "-0.0 + 0.0 is +0.0"


def test_zero_plus_integer_is_removed(rewrite):
    out = rewrite(RemoveNoops, lambda x: (x * x + 0) * x, torch.tensor([2**62, -1]))
    assert out.ops == ["mul.Tensor", "mul.Tensor"]


def test_padding_that_cuts_and_adds_stays(rewrite):
    assert not rewrite(RemoveNoops, lambda x: torch.constant_pad_nd(x.sin(), [-1, 1]), torch.randn(4, 6)).rules


def test_promotion_is_no_noop(rewrite):
    out = rewrite(
        RemoveNoops, lambda b, i: ((b * 1) + i, (i * 1.0) + 1, i / 1), torch.tensor([True]), torch.tensor([3])
    )
    assert out.ops.count("mul.Tensor") == 2 and "div.Tensor" in out.ops


def test_a_returned_copy_of_an_input_stays(rewrite):
    out = rewrite(RemoveNoops, lambda x: (x * 1, x.clone().view(6)), torch.randn(2, 3))
    assert out.ops == ["mul.Tensor", "clone.default", "view.default"]
    assert "returned" in out.reasons["times-one"] and "share storage" in out.reasons["copy-of-same"]


def test_a_returned_copy_of_another_output_stays(rewrite):
    def f(x):
        y = x.sin()
        return y, y.clone(), y.t().clone(memory_format=torch.preserve_format).t()

    out = rewrite(RemoveNoops, f, torch.randn(2, 3))
    assert out.ops.count("clone.default") == 2


def test_a_returned_copy_of_an_intermediate_goes(rewrite):
    out = rewrite(RemoveNoops, lambda x: x.sin().clone(), torch.randn(2, 3))
    assert out.ops == ["sin.default"]


def test_a_copy_taken_before_a_write_stays(rewrite):
    def f(x, y):
        old = x.clone()
        x.copy_(y)
        return old + x

    out = rewrite(RemoveNoops, f, torch.randn(3), torch.randn(3))
    assert "clone.default" in out.ops
    assert out.reasons["copy-of-same"] == "its storage is written to"


def test_a_copy_whose_whole_storage_is_read_stays(rewrite):
    def f(x):
        return x[1:].clone().as_strided((2,), (1,), 0) + 1

    out = rewrite(RemoveNoops, f, torch.randn(4))
    assert "clone.default" in out.ops


@pytest.mark.parametrize("make", [lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[:, :1].expand(4, 4)])
def test_non_contiguous(rewrite, make):
    x = make(torch.randn(4, 4))
    out = rewrite(RemoveNoops, lambda x: (x * 1.0).view(-1) if (x * 1).is_contiguous() else (x * 1.0).sin(), x)
    assert out.report.passes[0].failure is None


def test_square_transpose_is_no_noop(rewrite):
    out = rewrite(RemoveNoops, lambda x: x.t() @ x, torch.randn(4, 4))
    assert "t.default" in out.ops


def test_dropout_without_training(rewrite):
    out = rewrite(RemoveNoops, lambda x: aten.dropout(x.sin(), 0.5, False).cos(), torch.randn(4))
    assert out.ops == ["sin.default", "cos.default"]


def test_idempotent(rewrite):
    x = torch.tensor([math.nan, -math.inf, -0.0, 2.5])
    out = rewrite(RemoveNoops, lambda x: torch.relu(torch.relu(x)).abs().abs().round().round(), x)
    assert out.ops == ["relu.default", "abs.default", "round.default"]
    out = rewrite(RemoveNoops, lambda x: torch.round(torch.round(x, decimals=1), decimals=2), x)
    assert len(out.ops) == 2
