import pytest
import torch

from optpass.passes.cleanup.eliminate_common_subexpressions import EliminateCommonSubexpressions as Eliminate

pytestmark = pytest.mark.null


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("dynamic", [False, True])
def test_chain_of_three(rewrite, size, dynamic):
    def f(x):
        return x.sin().cos().exp() * x.sin().cos().exp()

    out = rewrite(Eliminate, f, torch.randn(size, 3), dynamic=dynamic)
    assert out.rules["equal"] >= 3
    assert [op for op in out.ops if "sym_size" not in op] == ["sin.default", "cos.default", "exp.default", "mul.Tensor"]


def test_operands_in_another_order(rewrite):
    out = rewrite(Eliminate, lambda x, y: (x + y) * (y + x), torch.randn(3), torch.randn(3))
    assert out.ops == ["add.Tensor", "mul.Tensor"]


def test_operands_in_an_order_that_decides_the_strides(rewrite):
    out = rewrite(Eliminate, lambda x, y: ((x + y).sum(0), (y + x).sum(1)), torch.randn(3, 3), torch.randn(3, 3).t())
    assert out.report.passes[0].failure is None


def test_maximum_of_zeros_depends_on_the_order(rewrite):
    x, y = torch.tensor([0.0, -0.0]), torch.tensor([-0.0, 0.0])
    out = rewrite(Eliminate, lambda x, y: torch.maximum(x, y) / torch.maximum(y, x), x, y)
    assert out.ops.count("maximum.default") == 2


def test_subtraction_is_not_commutative(rewrite):
    assert len(rewrite(Eliminate, lambda x, y: (x - y) * (y - x), torch.randn(3), torch.randn(3)).ops) == 3


def test_numbers_differ_in_type_and_sign(rewrite):
    out = rewrite(Eliminate, lambda i: (i * 1).sum() + (i * 1.0).sum() + (i * True).sum(), torch.tensor([1, 2]))
    assert out.ops.count("mul.Tensor") == 3
    out = rewrite(Eliminate, lambda x: (x * 0.0) / (x * -0.0), torch.tensor([1.0]))
    assert out.ops.count("mul.Tensor") == 2


def test_random_numbers_stay(rewrite):
    out = rewrite(Eliminate, lambda x: torch.rand_like(x) - torch.rand_like(x), torch.randn(3))
    assert out.ops.count("rand_like.default") == 2


def test_two_returned_tensors_stay_two(rewrite):
    out = rewrite(Eliminate, lambda x: (x.sin(), x.sin(), x.t(), x.t()), torch.randn(3, 3))
    assert out.ops == ["sin.default", "sin.default", "t.default", "t.default"]
    assert "returned" in out.reasons["equal"]


def test_one_returned_and_one_not(rewrite):
    assert rewrite(Eliminate, lambda x: (x.sin(), x.sin() + 1), torch.randn(3)).ops.count("sin.default") == 1


def test_reads_before_and_after_a_write_differ(rewrite):
    def f(x, y):
        before = x * 2
        x.copy_(y)
        return before + x * 2

    out = rewrite(Eliminate, f, torch.randn(3), torch.randn(3))
    assert out.ops.count("mul.Tensor") == 2


def test_uninitialised_tensors_stay(trace):
    from optpass.passes.cleanup.eliminate_common_subexpressions import _UNDEFINED

    assert torch.ops.aten.empty.memory_format in _UNDEFINED


def test_tensors_that_are_written_to_stay(rewrite):
    def f(x):
        a, b = torch.zeros(3), torch.zeros(3)
        a.copy_(x)
        return a + b

    assert rewrite(Eliminate, f, torch.randn(3)).ops.count("zeros.default") == 2
