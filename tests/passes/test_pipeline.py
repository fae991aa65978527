"""The manager with passes planted to go wrong in each way that it must catch."""

from __future__ import annotations

import time

import pytest
import torch

from optpass.errors import ConfigError, PassError, VerifyError
from optpass.options import Options
from optpass.passes.base import Fact, Pass, PassContext, RewriteCounter, Stage
from optpass.passes.meta import fake_mode_of
from optpass.passes.pipeline import DEFAULT, fingerprint, ordered_passes, run_passes, run_stage
from optpass.passes.registry import load_entry_points, register_pass, unregister_pass

pytestmark = pytest.mark.null
aten = torch.ops.aten


def context(**options):
    return PassContext(Options.parse(options=options), counter=RewriteCounter())


class Swap(Pass):
    """Turn each `sin` into `target`, in place."""

    name = "swap"
    exact = True
    target = aten.cos.default

    def run(self, gm, ctx):
        for node in gm.graph.find_nodes(op="call_function", target=aten.sin.default):
            if ctx.apply("swap", node):
                node.target = self.target


class WrongFormula(Pass):
    """x * 2 becomes x + x where x is right, and x * 3 becomes x + x too, which is wrong."""

    name = "wrong-formula"
    exact = True

    def run(self, gm, ctx):
        for node in gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
            if ctx.apply("double", node):
                node.target, node.args = aten.add.Tensor, (node.args[0], node.args[0])


class DropCopies(Pass):
    """Return the source of each copy, whoever gets it."""

    name = "drop-copies"

    def run(self, gm, ctx):
        for node in gm.graph.find_nodes(op="call_function", target=aten.clone.default):
            if ctx.apply("drop", node):
                node.replace_all_uses_with(node.args[0])
                gm.graph.erase_node(node)


class Raises(Pass):
    name = "raises"

    def run(self, gm, ctx):
        node = gm.graph.find_nodes(op="call_function", target=aten.cos.default)[0]
        if ctx.apply("spoil", node):
            node.args = ()
        raise RuntimeError("half done")


def f(x):
    return (x * 2).sin() + (x * 3).cos() + (x * 2).exp()


def test_a_wrong_rewrite_is_rolled_back_and_the_right_ones_stay(trace):
    gm, ctx, x = trace(f, torch.randn(5)), context(verify="numeric"), torch.randn(5)
    run_passes([WrongFormula()], Stage.TENSOR, gm, ctx)
    assert torch.equal(gm(x), f(x))
    assert [node.target for node in gm.graph.nodes].count(aten.mul.Tensor) == 1
    undone = [rewrite for rewrite in ctx.report.rewrites if rewrite.rolled_back]
    assert [(r.number, r.nodes, r.rule) for r in undone] == [(2, ("mul_1",), "double")]
    assert "ordinary values" in undone[0].rolled_back
    assert [rewrite.number for rewrite in ctx.report.rewrites] == [1, 2, 3]
    assert "mul_1" in [declined.node for declined in ctx.report.declined]


def test_a_wrong_rewrite_deep_in_a_large_graph_is_found(trace):
    def large(x):
        for _ in range(150):
            x = x.tanh() + 1
        return (x * 3).relu() if x.dim() else x

    gm, ctx = trace(large, torch.randn(3)), context(verify="numeric")
    run_passes([WrongFormula()], Stage.TENSOR, gm, ctx)
    assert ctx.report.rewrites[0].rolled_back


def test_strict_raises_and_names_the_rewrite(trace):
    with pytest.raises(VerifyError, match=r"wrong-formula.*rewrite 2 .*mul_1"):
        run_passes([WrongFormula()], Stage.TENSOR, trace(f, torch.randn(5)), context(verify="strict"))
    with pytest.raises(VerifyError, match="half done"):
        run_passes([Raises()], Stage.TENSOR, trace(f, torch.randn(5)), context(verify="strict"))


@pytest.mark.parametrize("verify", ["meta", "numeric"])
def test_an_alias_bug_is_rolled_back(trace, verify):
    gm, ctx, x = trace(lambda x: x.clone(), torch.randn(5)), context(verify=verify), torch.randn(5)
    run_passes([DropCopies()], Stage.TENSOR, gm, ctx)
    assert gm(x).data_ptr() != x.data_ptr()
    assert "share storage" in ctx.report.passes[0].failure
    assert ctx.report.rewrites[0].rolled_back == ctx.report.passes[0].failure


def test_an_alias_bug_through_views_is_rolled_back(trace):
    def views(x):
        return x.clone().view(6).view(3, 2).t()

    gm, ctx, x = trace(views, torch.randn(2, 3)), context(), torch.randn(2, 3)
    run_passes([DropCopies()], Stage.TENSOR, gm, ctx)
    assert gm(x).data_ptr() != x.data_ptr()


@pytest.mark.parametrize("verify", ["off", "meta", "numeric"])
def test_a_pass_that_raises_is_undone_and_the_rest_goes_on(trace, verify):
    gm, ctx, x = trace(f, torch.randn(5)), context(verify=verify), torch.randn(5)
    run_passes([Raises(), WrongFormula()], Stage.TENSOR, gm, ctx)
    assert ctx.report.passes[0].failure == "RuntimeError: half done"
    assert ctx.report.passes[1].failure is None
    gm(x)


def test_a_wrong_shape_or_dtype_is_rolled_back(trace):
    class Sum(Swap):
        target = aten.sum.default

    class Compare(Swap):
        target = aten.logical_not.default

    for kind in (Sum, Compare):
        gm, ctx = trace(lambda x: x.sin(), torch.randn(5)), context()
        run_passes([kind()], Stage.TENSOR, gm, ctx)
        assert "became" in ctx.report.passes[0].failure
        assert gm.graph.find_nodes(op="call_function", target=aten.sin.default)


def test_a_missing_fact_skips_the_pass(trace):
    class Needs(Swap):
        needs = frozenset({Fact.FUNCTIONAL})

    def write(x):
        x.sin_()
        return x.sin()

    gm, ctx = trace(write, torch.randn(5)), context()
    run_passes([Needs()], Stage.SEMANTIC, gm, ctx)
    assert not ctx.report.rewrites and "needs FUNCTIONAL" in ctx.report.declined[0].reason


def test_rewrites_record_work_and_source(trace):
    gm, ctx = trace(f, torch.randn(5)), context()
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = '  File "model.py", line 7, in forward\n    y = x.sin()\n      ^^^\n'
    run_passes([Swap()], Stage.TENSOR, gm, ctx)
    (rewrite,) = ctx.report.rewrites
    assert (rewrite.bytes_before, rewrite.bytes_after, rewrite.flops_before) == (40, 40, 5)
    assert rewrite.source == "model.py:7 in forward: y = x.sin()"


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 9])
def test_bisect_limit_applies_the_first_so_many(trace, limit):
    gm, ctx = trace(f, torch.randn(5)), context(bisect_limit=limit)
    run_passes([WrongFormula()], Stage.TENSOR, gm, ctx)
    assert len(ctx.report.rewrites) == min(limit, 3)
    assert sum(declined.reason == "bisect_limit" for declined in ctx.report.declined) == 3 - min(limit, 3)


def test_passes_run_outside_the_modes_of_the_compiler(trace):
    seen = []

    class Compute(Pass):
        name = "compute"

        def run(self, gm, ctx):
            seen.append((torch.ones(3) * 2).sum().item())

    gm = trace(f, torch.randn(5))
    with fake_mode_of(gm.graph):
        run_passes([Compute()], Stage.TENSOR, gm, context())
    assert seen == [6.0]


def test_a_call_of_a_sub_graph_has_its_value(trace):
    class Outline(Pass):
        name = "outline"
        value = None

        def run(self, gm, ctx):
            (node,) = gm.graph.find_nodes(op="call_function", target=aten.sin.default)
            if ctx.apply("outline", node):
                gm.add_submodule("fused_0", trace(lambda x: x.sin(), torch.randn(5)))
                with gm.graph.inserting_before(node):
                    call = gm.graph.call_module("fused_0", node.args)
                call.meta["val"] = node.meta["val"] if self.value is None else self.value
                node.replace_all_uses_with(call)
                gm.graph.erase_node(node)

    x, outline = torch.randn(5), Outline()
    for value in (None, torch.empty(6)):
        outline.value = value
        gm, ctx = trace(lambda x: x.sin().exp(), x), context(verify="numeric")
        run_passes([outline], Stage.FUSION, gm, ctx)
        assert (ctx.report.passes[0].failure is None) == (value is None)
        assert torch.equal(gm(x), x.sin().exp())


def test_entry_points_are_loaded_once_and_may_be_broken(monkeypatch):
    class Point:
        def __init__(self, name, load):
            self.name, self.load = name, load

    def good():
        register_pass(stage="tensor", name="from-entry-point")(lambda gm, ctx: None)

    points = [Point("bad", lambda: 1 / 0), Point("good", good)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    load_entry_points.cache_clear()
    try:
        with pytest.warns(UserWarning, match="'bad' are left out"):
            assert ordered_passes(Stage.TENSOR)[-1].name == "from-entry-point"
        assert ordered_passes(Stage.TENSOR)[-1].name == "from-entry-point"
    finally:
        unregister_pass("from-entry-point")


def test_registered_passes_take_the_place_that_they_ask_for():
    names = [kind.name for kind in DEFAULT[Stage.TENSOR]]
    first = lambda gm, ctx: None
    try:
        register_pass(stage="tensor", after=names[0], name="second")(first)
        register_pass(stage="tensor", before=names[0], name="first")(first)
        register_pass(stage="tensor", name="last")(first)
        register_pass(stage="tensor", after="last", name="really-last")(first)
        assert [p.name for p in ordered_passes(Stage.TENSOR)] == [
            "first",
            names[0],
            "second",
            *names[1:],
            "last",
            "really-last",
        ]
        disabled = Options.parse(options={"disable": ["last", names[1]]})
        assert not {"last", names[1]} & {p.name for p in ordered_passes(Stage.TENSOR, disabled)}
        assert fingerprint(disabled) != fingerprint(Options())
    finally:
        for name in ("first", "second", "last", "really-last"):
            unregister_pass(name)


def test_impossible_orders_name_the_passes():
    try:
        register_pass(stage="joint", after="b-pass", name="a-pass")(lambda gm, ctx: None)
        with pytest.raises(PassError, match=r"'a-pass'.*'b-pass'"):
            ordered_passes(Stage.JOINT)
        register_pass(stage="joint", after="a-pass", name="b-pass")(lambda gm, ctx: None)
        with pytest.raises(PassError, match=r"cycle.*a-pass.*b-pass|cycle.*b-pass.*a-pass"):
            ordered_passes(Stage.JOINT)
    finally:
        unregister_pass("a-pass")
        unregister_pass("b-pass")


def test_names_are_unique_and_known():
    with pytest.raises(PassError, match="exists already"):
        register_pass(stage="tensor", name="canonicalise")(lambda gm, ctx: None)
    with pytest.raises(PassError, match="unknown stage 'tenser'"):
        register_pass(stage="tenser")
    with pytest.raises(PassError, match="no registered pass"):
        unregister_pass("canonicalise")
    with pytest.raises(ConfigError, match="did you mean 'canonicalise'"):
        ordered_passes(Stage.TENSOR, Options.parse(options={"disable": ["canonicalize"]}))


def test_a_registered_function_counts_as_one_rewrite(trace):
    @register_pass(stage="tensor")
    def swap_all(gm, ctx):
        for node in gm.graph.find_nodes(op="call_function", target=aten.sin.default):
            node.target = aten.cos.default

    try:
        ctx = context(disable=[kind.name for kind in DEFAULT[Stage.TENSOR]], verify="numeric")
        run_stage(Stage.TENSOR, trace(f, torch.randn(5)), ctx)
        assert [(r.rule, bool(r.rolled_back)) for r in ctx.report.rewrites] == [("swap-all", True)]
    finally:
        unregister_pass("swap-all")


def test_cleanup_of_a_thousand_nodes_is_fast(trace):
    def model(x, w):
        for _ in range(110):
            y = torch.relu(x @ w).view(2, 2, 16).permute(1, 0, 2)
            x = (y.reshape(4, 16) * 1.0 + x) / 3 - x.sigmoid()
        return x

    gm, ctx = trace(model, torch.randn(4, 16), torch.randn(16, 16)), context()
    assert len(gm.graph.nodes) > 1000
    start = time.perf_counter()
    run_stage(Stage.TENSOR, gm, ctx)
    # Typically 0.15 s; the bound allows for a busy machine.
    assert time.perf_counter() - start < 2
