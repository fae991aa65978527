"""Rewrites that only particular numbers or sizes show to be wrong."""

from __future__ import annotations

import pytest
import torch

from optpass.options import Options
from optpass.passes.base import Pass, PassContext, RewriteCounter, Stage
from optpass.passes.pipeline import run_passes

pytestmark = pytest.mark.null
aten = torch.ops.aten


def planted(old, new, exact=True):
    """A pass that turns each `old` into what `new(graph, node)` builds."""

    class Planted(Pass):
        name = "planted"

        def run(self, gm, ctx):
            for node in gm.graph.find_nodes(op="call_function", target=old):
                if ctx.apply("planted", node):
                    with gm.graph.inserting_before(node):
                        node.replace_all_uses_with(new(gm.graph, node))
                    gm.graph.erase_node(node)

    Planted.exact = exact
    return Planted()


def replay(gm, pass_):
    ctx = PassContext(Options.parse(options={"verify": "numeric"}), counter=RewriteCounter())
    run_passes([pass_], Stage.TENSOR, gm, ctx)
    assert ctx.report.passes[0].failure is None
    return [rewrite.rolled_back for rewrite in ctx.report.rewrites]


def call(target, *args):
    return lambda graph, node: graph.call_function(target, tuple(node.args[a] if type(a) is int else a for a in args))


def test_the_sign_of_zero(trace):
    gm = trace(lambda x: x.sin() + 0.0, torch.randn(3))
    (reason,) = replay(gm, planted(aten.add.Tensor, lambda graph, node: node.args[0]))
    assert "was 0.0 and is -0.0" in reason


def test_nan(trace):
    def positive(graph, node):
        x = node.args[0]
        return graph.call_function(aten.where.ScalarOther, (graph.call_function(aten.gt.Scalar, (x, 0.0)), x, 0.0))

    (reason,) = replay(trace(lambda x: torch.relu(x), torch.randn(3)), planted(aten.relu.default, positive))
    assert "nan" in reason


def test_integers_at_their_limits(trace):
    gm = trace(lambda i: torch.abs(i) + 0, torch.tensor([1, 2]))
    (reason,) = replay(gm, planted(aten.abs.default, lambda graph, node: node.args[0]))
    assert "large values" in reason


def test_dimensions_that_coincide_in_the_example(trace):
    gm = trace(lambda x, y: x.sum(0, True) + y, torch.randn(6, 6), torch.randn(6, 6), dynamic=True)
    assert replay(gm, planted(aten.sum.dim_IntList, lambda g, n: n.args[0]))[0]


def test_reassociation_is_allowed_unless_exact(trace):
    def f(x, y, z):
        return (x + y) + z

    def other_order(graph, node):
        x, y = node.args[0].args
        return graph.call_function(aten.add.Tensor, (x, graph.call_function(aten.add.Tensor, (y, node.args[1]))))

    def only_outer(graph, node):
        inner = getattr(node.args[0], "target", None) is aten.add.Tensor
        return other_order(graph, node) if inner else graph.call_function(node.target, node.args)

    inputs = [torch.randn(64) for _ in range(3)]
    assert replay(trace(f, *inputs), planted(aten.add.Tensor, only_outer, exact=False)) == [None, None]
    assert replay(trace(f, *inputs), planted(aten.add.Tensor, only_outer, exact=True))[1]


def test_float64_tells_a_wrong_formula_from_rounding(trace):
    gm = trace(lambda x: torch.sin(x), torch.randn(8).bfloat16())
    near = planted(
        aten.sin.default,
        lambda g, n: g.call_function(aten.mul.Tensor, (g.call_function(aten.sin.default, n.args), 1.0001)),
        exact=False,
    )
    (reason,) = replay(gm, near)
    assert reason


def test_random_numbers_are_drawn_alike(trace):
    gm = trace(lambda x: torch.rand_like(x) * x.sin(), torch.randn(4))
    assert replay(gm, planted(aten.sin.default, call(aten.sin.default, 0))) == [None]
