import pytest
import torch

from optpass.passes.base import Stage
from optpass.passes.cleanup.remove_dead_code import RemoveDeadCode

pytestmark = pytest.mark.null


def test_chain_of_three_goes(rewrite):
    def f(x):
        x.sin().cos().exp()
        return x + 1

    out = rewrite(RemoveDeadCode, f, torch.randn(3))
    assert out.ops == ["add.Tensor"] and out.rules["dead"] == 3


def test_a_branch_that_is_read_stays(rewrite):
    def f(x):
        y = x.sin()
        y.cos()
        return y

    assert rewrite(RemoveDeadCode, f, torch.randn(3)).ops == ["sin.default"]


@pytest.mark.parametrize(("parity", "ops"), [("fast", []), ("eager", ["rand_like.default"])])
def test_random_numbers(rewrite, parity, ops):
    def f(x):
        torch.rand_like(x)
        return x + 1

    out = rewrite(RemoveDeadCode, f, torch.randn(3), parity=parity)
    assert out.ops == [*ops, "add.Tensor"]
    if parity == "eager":
        assert "random generator" in out.reasons["dead"]


def test_writes_stay(rewrite):
    def f(x, y):
        x.copy_(y)
        return y + 1

    assert "copy_.default" in rewrite(RemoveDeadCode, f, torch.randn(3), torch.randn(3)).ops


def test_writes_before_autograd_stay(rewrite):
    def f(x):
        x.add_(1)
        return x * 2

    assert rewrite(RemoveDeadCode, f, torch.randn(3), stage=Stage.SEMANTIC).ops == ["add_.Tensor", "mul.Tensor"]


def test_assertions_stay(rewrite):
    def f(x):
        torch.ops.aten._assert_async.msg(x.sum() < 1e9, "too large")
        return x + 1

    assert "_assert_async.msg" in rewrite(RemoveDeadCode, f, torch.randn(3)).ops


def test_inputs_stay(rewrite):
    out = rewrite(RemoveDeadCode, lambda x, y: x + 1, torch.randn(0, 3), torch.randn(2), dynamic=True)
    assert len(out.gm.graph.find_nodes(op="placeholder")) == 2


def test_operators_with_effects_stay(rewrite):
    log = []

    @torch.library.custom_op("optpass_test::note", mutates_args=())
    def note(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        return x.clone()

    note.register_fake(torch.empty_like)
    handle = getattr(torch.library, "_register_effectful_op", None)
    if handle is None:
        pytest.skip("this PyTorch registers no effects")

    def f(x):
        torch.ops.optpass_test.note(x)
        return x + 1

    assert rewrite(RemoveDeadCode, f, torch.randn(3)).ops == ["add.Tensor"]
