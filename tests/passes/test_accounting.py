from __future__ import annotations

import pytest
import torch

from optpass.passes.accounting import Cost, graph_cost, node_cost

pytestmark = pytest.mark.null
aten = torch.ops.aten


@pytest.fixture
def cost(trace):
    def of(function, *inputs, dynamic=False):
        return graph_cost(trace(function, *inputs, dynamic=dynamic).graph)

    return of


@pytest.mark.parametrize("dynamic", [False, True])
def test_pointwise(cost, dynamic):
    assert cost(lambda x, y: x + y, torch.randn(4, 6), torch.randn(4, 6), dynamic=dynamic) == Cost(3 * 96, 24)
    assert cost(lambda x: x * x, torch.randn(4, 6), dynamic=dynamic) == Cost(2 * 96, 24), "one read of one tensor"


def test_views_and_tuple_access_are_free(cost):
    assert cost(lambda x: x.t().unsqueeze(0).view(1, 6, 4), torch.randn(4, 6)) == Cost(0, 0)
    assert cost(lambda x: x.split(2), torch.randn(4, 6)) == Cost(0, 0)


def test_an_expanded_tensor_stores_one_row(cost):
    assert cost(lambda x, y: x + y.expand(4, 6), torch.randn(4, 6), torch.randn(6)).bytes == 96 + 24 + 96
    assert cost(lambda x: x.expand(0, 6).clone(), torch.randn(6)).bytes == 0


def test_dtypes(cost):
    assert cost(lambda x: x.to(torch.bfloat16), torch.randn(4, 6)) == Cost(96 + 48, 0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_matrix_products(cost, dynamic):
    a, b = torch.randn(4, 6), torch.randn(6, 5)
    assert cost(lambda a, b: a @ b, a, b, dynamic=dynamic) == Cost(4 * (24 + 30 + 20), 2 * 4 * 5 * 6)
    assert cost(torch.bmm, torch.randn(3, 4, 6), torch.randn(3, 6, 5), dynamic=dynamic).flops == 3 * 240
    assert cost(torch.addmm, torch.randn(5), a, b, dynamic=dynamic).flops == 240


def test_convolution(cost):
    x, w = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3)
    assert cost(torch.nn.functional.conv2d, x, w).flops == 2 * 2 * 5 * 6 * 6 * 27


def test_attention(cost):
    q, k = torch.randn(2, 3, 8, 16), torch.randn(2, 3, 12, 16)
    flops = cost(torch.nn.functional.scaled_dot_product_attention, q, k, k).flops
    assert flops == pytest.approx(2 * 3 * 2 * 2 * 8 * 12 * 16, rel=0.3)


def test_reduction(cost):
    assert cost(lambda x: x.sum(1), torch.randn(4, 6)) == Cost(96 + 16, 24)


def test_a_gather_reads_rows_only(cost):
    assert cost(lambda i, w: w[i], torch.tensor([1, 2]), torch.randn(1000, 6)).bytes == 16 + 48 + 48


def test_before_autograd(trace):
    gm = torch.fx.symbolic_trace(lambda x, w: aten.linear.default(x, w))
    (x, w, linear, _) = gm.graph.nodes
    x.meta["val"], w.meta["val"], linear.meta["val"] = torch.empty(2, 4, 6), torch.empty(5, 6), torch.empty(2, 4, 5)
    assert node_cost(linear).flops == 2 * 2 * 4 * 6 * 5
