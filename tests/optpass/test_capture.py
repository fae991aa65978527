"""Normalised graphs: composite operators stay whole, marks are kept, and what cannot be traced says why."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from optpass.capture import normalise, why_not_normalise
from optpass.errors import CaptureError

pytestmark = pytest.mark.null


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def captured(fn, *inputs, dynamic=None):
    """Dynamo's graph and its normal form, and whether both compute the same."""
    found = []

    def backend(gm, examples):
        found.append((gm, normalise(gm, examples)))
        return found[-1][1]

    with torch.no_grad():
        torch.testing.assert_close(torch.compile(fn, backend=backend, dynamic=dynamic)(*inputs), fn(*inputs))
    return found[0]


def operators(gm):
    return [n.target._schema.name for n in gm.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "fn, name",
    [
        (lambda x, w: F.linear(x, w), "aten::linear"),
        (lambda x, w: x.softmax(-1), "aten::softmax"),
        (lambda x, w: F.layer_norm(x, (6,)), "aten::layer_norm"),
        (lambda x, w: x @ w.t(), "aten::matmul"),
        (lambda x, w: F.silu(x), "aten::silu"),
        (lambda x, w: F.scaled_dot_product_attention(x[None], w[None], w[None]), "aten::scaled_dot_product_attention"),
    ],
)
def test_composites_stay_one_node(fn, name, dynamic):
    _, normal = captured(fn, torch.randn(4, 6), torch.randn(5, 6), dynamic=dynamic)
    assert operators(normal).count(name) == 1


def test_inputs_keep_their_names_and_marks():
    layer = torch.nn.Linear(6, 3)
    before, after = captured(lambda x: layer(x).relu(), torch.randn(4, 6))
    pairs = list(zip(before.graph.find_nodes(op="placeholder"), after.graph.find_nodes(op="placeholder"), strict=True))
    assert len(pairs) == 3
    for old, new in pairs:
        assert getattr(old, "_dynamo_source", None) == getattr(new, "_dynamo_source", None)


def test_writes_stay_in_order():
    def fn(x):
        y = x.sin()
        y.add_(1)
        y[0].mul_(2)
        return y

    _, normal = captured(fn, torch.randn(4, 6))
    names = operators(normal)
    assert names.index("aten::add_") < names.index("aten::mul_")


def test_reasons():
    reasons = []

    def backend(gm, examples):
        reasons.append(why_not_normalise(gm))
        return gm

    def modes(x):
        with torch.no_grad():
            y = x.sin()
        return x * y

    torch.compile(modes, backend=backend)(torch.randn(3, requires_grad=True))
    torch.compile(lambda x: x.sin(), backend=backend)(torch.randn(3))
    assert "switches a mode" in reasons[0] and reasons[1] is None


def test_a_graph_from_elsewhere_is_refused():
    gm = torch.fx.symbolic_trace(lambda x: x.sin())
    with pytest.raises(CaptureError, match="tracing context"):
        normalise(gm, [torch.randn(3)])
