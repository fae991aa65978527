import math

import pytest
import torch

from optpass.passes.cleanup.fold_constants import FoldConstants
from optpass.passes.cleanup.remove_dead_code import RemoveDeadCode

pytestmark = pytest.mark.null
PASSES = [FoldConstants, RemoveDeadCode]


def test_chain_of_three(rewrite):
    out = rewrite(PASSES, lambda x: x @ torch.full((3, 3), 2.0).exp().neg().sqrt(), torch.randn(3, 3))
    assert out.ops == ["full.default", "mm.default"]
    assert math.isnan(out.gm.graph.find_nodes(op="call_function", target=torch.ops.aten.full.default)[0].args[1])


@pytest.mark.parametrize("number", [0.0, -0.0, math.inf, math.nan, 1e-40, 1 / 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_odd_numbers(rewrite, number, dtype):
    out = rewrite(PASSES, lambda x: x * (torch.full((), number, dtype=dtype) * 2), torch.randn(4).to(dtype))
    assert out.ops == ["mul.Tensor"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64])
def test_integers_wrap(rewrite, dtype):
    out = rewrite(PASSES, lambda x: x + torch.full((3,), 100, dtype=dtype) * 100, torch.tensor([1, 2, 3], dtype=dtype))
    assert out.ops == ["add.Tensor"]


def test_dtypes_of_scalars(rewrite):
    out = rewrite(PASSES, lambda x: x * torch.full((), 1 / 3, dtype=torch.float64), torch.randn(3))
    assert out.ops == ["full.default", "mul.Tensor"]
    assert "does not hold" in out.reasons["scalar-operand"]
    out = rewrite(PASSES, lambda i: i * torch.full((), 2.0), torch.tensor([1, 2]))
    assert "kinds" in out.reasons["scalar-operand"]
    out = rewrite(PASSES, lambda x: x * torch.full((1,), 2.0, dtype=torch.float64), torch.randn(3))
    assert out.reasons["scalar-operand"]


def test_a_wider_constant_still_broadcasts(rewrite):
    out = rewrite(PASSES, lambda x: x * torch.full((4, 3), 2.0), torch.randn(3))
    assert out.ops == ["full.default", "mul.Tensor"]


def test_literals(rewrite):
    assert rewrite(PASSES, lambda x: x * torch.tensor(2.5), torch.randn(3)).ops == ["mul.Tensor"]


def test_random_numbers_and_ranges_stay(rewrite):
    out = rewrite(PASSES, lambda x: x + torch.rand(3) * torch.arange(3), torch.randn(3))
    assert "rand.default" in out.ops and "arange.default" in out.ops


def test_parameters_stay(trace):
    from optpass.passes.cleanup.fold_constants import _literal

    owner = torch.nn.Module()
    owner.p, owner._tensor_constant1 = torch.nn.Parameter(torch.tensor(1.0)), torch.nn.Parameter(torch.tensor(1.0))
    owner.register_buffer("b", torch.tensor(3.0))
    graph = torch.fx.Graph(owning_module=owner)
    nodes = [graph.get_attr(name) for name in ("p", "b", "_tensor_constant1")]
    gm = torch.fx.GraphModule(owner, graph)
    assert [_literal(node, gm) for node in nodes] == [None, None, None]


def test_returned_constants_are_fresh_each_time(rewrite):
    out = rewrite(PASSES, lambda x: (torch.zeros(3) + 1, torch.ones(3).view(1, 3) * 2, x), torch.randn(2))
    assert out.ops == ["full.default", "full.default"]


def test_branch(rewrite):
    def f(x):
        one = torch.ones(3)
        return x * one + x @ (one + 1), one

    out = rewrite(PASSES, f, torch.randn(3))
    assert out.ops.count("ones.default") == 1


@pytest.mark.parametrize("size", [0, 1, 5])
def test_symbolic_shapes(rewrite, size):
    def f(x):
        return x * (torch.ones_like(x) + 1), torch.ones_like(x).exp()

    out = rewrite(PASSES, f, torch.randn(size, 3), dynamic=True)
    if size > 1:
        assert "symbolic" in out.reasons["fill"]


def test_tensors_that_are_written_to_stay(rewrite):
    def f(x):
        a = torch.zeros(3) + 1
        b = a.clone()
        a.view(3, 1).copy_(x.view(3, 1))
        return a * b

    assert "full.default" not in rewrite(PASSES, f, torch.randn(3)).ops


def test_strides_stay(rewrite):
    out = rewrite(PASSES, lambda x: (torch.ones(3, 1) * 2).expand(3, 4).cumsum(0) + x, torch.randn(3, 4))
    assert out.reasons["fill"]


def test_a_view_that_is_returned_with_its_base_stays_a_view(rewrite):
    def fn(x):
        base = torch.zeros(3, 2)
        return base, base.unsqueeze(-1), x.sin()

    assert "shares storage" in rewrite(FoldConstants, fn, torch.randn(2)).reasons["fill"]
