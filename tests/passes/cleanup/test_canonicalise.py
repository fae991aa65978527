import math

import pytest
import torch

from optpass.passes.base import Stage
from optpass.passes.cleanup.canonicalise import Canonicalise

pytestmark = pytest.mark.null
aten = torch.ops.aten


def odd_numbers(dtype=torch.float32):
    return torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 3e38, 1 / 3], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("function", "ops"),
    [
        (lambda x: x - 1, ["add.Tensor"]),
        (lambda x: x - 0, ["add.Tensor"]),
        (lambda x: x / 4, ["mul.Tensor"]),
        (lambda x: x / -0.125, ["mul.Tensor"]),
        (lambda x: x * -1, ["neg.default"]),
        (lambda x: x / 3, ["div.Tensor"]),
        (lambda x: x / 1e-40, ["div.Tensor"]),
        (lambda x: aten.mul.Scalar(x, 2), ["mul.Tensor"]),
    ],
)
def test_arithmetic_with_a_number(rewrite, dtype, function, ops):
    assert rewrite(Canonicalise, function, odd_numbers(dtype)).ops == ops


def test_numbers_take_the_type_of_the_tensor(rewrite):
    out = rewrite(Canonicalise, lambda x: (x + 1) * 2, odd_numbers())
    assert [node.args[1] for node in out.gm.graph.nodes if node.op == "call_function"] == [1.0, 2.0]
    assert all(isinstance(node.args[1], float) for node in out.gm.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.bool])
def test_integers_stay(rewrite, dtype):
    limits = torch.tensor([0, 1, 127], dtype=dtype)
    out = rewrite(Canonicalise, lambda x: (x + 1, x * 2.5, x / 4, x * 1.0), limits)
    assert out.ops == ["add.Tensor", "mul.Tensor", "div.Tensor", "mul.Tensor"]


def test_negation_of_integers_wraps_alike(rewrite):
    x = torch.tensor([-(2**63), 2**63 - 1, 0])
    assert rewrite(Canonicalise, lambda x: x * -1, x).ops == ["neg.default"]
    x = torch.tensor([True])
    assert rewrite(Canonicalise, lambda x: x * -1, x).ops == ["mul.Tensor"]


def test_why_not(rewrite):
    reasons = rewrite(Canonicalise, lambda x: (x / 3, x + (2**60 + 1)), odd_numbers()).reasons
    assert "power of two" in reasons["div-power-of-two"] and "float64" in reasons["float-scalar"]


def test_defaults_go_and_names_become_places(trace, rewrite):
    gm = trace(lambda x: x.sin(), torch.randn(3, 4))
    (node,) = gm.graph.find_nodes(op="call_function", target=aten.sin.default)
    x = node.args[0]
    node.target, node.args, node.kwargs = aten.sum.dim_IntList, (x,), {"dim": [1], "keepdim": False, "dtype": None}
    from optpass.passes.cleanup.canonicalise import _normal_arguments

    assert _normal_arguments(node) == ((x, [1]), {})
    node.args, node.kwargs = (x, [1], True), {}
    assert _normal_arguments(node) is None


def test_a_default_of_another_type_stays(trace):
    from optpass.passes.cleanup.canonicalise import _normal_arguments

    gm = trace(lambda x: torch.add(x, x, alpha=1), torch.randn(3))
    node = gm.graph.find_nodes(op="call_function", target=aten.add.Tensor)[0]
    node.kwargs = {"alpha": 1.0}
    assert _normal_arguments(node) is None
    node.kwargs = {"alpha": 1}
    assert _normal_arguments(node) == (node.args, {})


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("dynamic", [False, True])
def test_chain_branch_and_returned_intermediate(rewrite, size, dynamic):
    def f(x):
        y = x.t() - 1
        return y, (y / 2 - 3) * -1

    assert rewrite(Canonicalise, f, torch.randn(size, 3), dynamic=dynamic).rules["sub-scalar"] == 2


def test_in_place_operations_before_autograd(rewrite):
    def f(x):
        y = x - 1
        y.mul_(-1)
        return y / 2

    out = rewrite(Canonicalise, f, torch.randn(4), stage=Stage.SEMANTIC)
    assert out.ops == ["add.Tensor", "mul_.Tensor", "mul.Tensor"]


def test_alpha_stays(rewrite):
    assert rewrite(Canonicalise, lambda x: torch.sub(x, 2.0, alpha=3), torch.randn(4)).ops == ["sub.Tensor"]
