from __future__ import annotations

import pytest
import torch

from optpass.errors import VerifyError
from optpass.passes.base import Fact, Stage
from optpass.passes.meta import fake_mode_of, meta_difference, refresh_values
from optpass.passes.snapshot import Snapshot
from optpass.passes.verify import Contract, check_structure, missing_fact

pytestmark = pytest.mark.null
aten = torch.ops.aten


def test_an_unchanged_graph_keeps_its_contract(trace):
    gm = trace(lambda x, y: (x, x.t(), y + 1, [y * 2, None, 3]), torch.randn(2, 3), torch.randn(3))
    Contract.of(gm.graph).check(gm.graph)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_aliases_of_outputs(trace, dynamic):
    gm = trace(lambda x: (x.t(), x.clone(), x.view(-1)), torch.randn(2, 3), dynamic=dynamic)
    aliases = Contract.of(gm.graph).aliases
    assert aliases[0] == aliases[2] == "placeholder x_1" and aliases[1] == "output 1"


def change_output(gm, make):
    output = gm.graph.output_node()
    output.args = (make(output.args[0]),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda outs: [outs[0], outs[0]], "share storage|same object"),
        (lambda outs: [outs[1], outs[0]], "output 0 changed"),
        (lambda outs: [outs[0]], "returned 2 outputs"),
        (lambda outs: [outs[0].args[0], outs[1]], "share storage"),
    ],
)
def test_changed_outputs(trace, make, message):
    gm = trace(lambda x: [x.sin(), x.cos()], torch.randn(3))
    if "output 0" in message:
        gm = trace(lambda x: [x.sin(), x.sum()], torch.randn(3))
    contract = Contract.of(gm.graph)
    change_output(gm, make)
    with pytest.raises(VerifyError, match=message):
        contract.check(gm.graph)


def test_a_lost_write(trace):
    def f(x, y):
        x.copy_(y)
        return y + 1

    gm = trace(f, torch.randn(3), torch.randn(3))
    contract = Contract.of(gm.graph)
    gm.graph.erase_node(gm.graph.find_nodes(op="call_function", target=aten.copy_.default)[0])
    with pytest.raises(VerifyError, match="writes to inputs"):
        contract.check(gm.graph)


def test_structure(trace):
    gm = trace(lambda x: x.sin().cos(), torch.randn(3))
    check_structure(gm, Stage.TENSOR)
    sin, cos = (gm.graph.find_nodes(op="call_function", target=t)[0] for t in (aten.sin.default, aten.cos.default))
    cos.append(sin)
    with pytest.raises(VerifyError, match="malformed"):
        check_structure(gm, Stage.TENSOR)
    gm = trace(lambda x: x.sin(), torch.randn(3))
    with gm.graph.inserting_before(gm.graph.output_node()):
        gm.graph.call_method("cos", (next(iter(gm.graph.nodes)),))
    with pytest.raises(VerifyError, match="call_method"):
        check_structure(gm, Stage.TENSOR)


def test_facts(trace):
    def trailing(x, y):
        x.copy_(y)
        return y + 1

    both = frozenset(Fact)
    assert missing_fact(trace(trailing, torch.randn(3), torch.randn(3)).graph, both) is None
    gm = trace(lambda x: x.sin().add_(1), torch.randn(3))
    assert "add_" in missing_fact(gm.graph, both)
    del next(node for node in gm.graph.nodes if node.op == "call_function").meta["val"]
    assert "sin" in missing_fact(gm.graph, frozenset({Fact.VALUES}))


def test_metadata_differences():
    x = torch.empty(2, 3)
    assert meta_difference(x, torch.empty(2, 3)) is None
    for other in (x.double(), x.t(), torch.empty(3, 2).t(), torch.empty(2, 3, device="meta"), None, [x]):
        assert "became" in meta_difference(x, other)
    assert meta_difference([x, 1, None], (x, 1, None)) is None
    assert meta_difference(torch.empty(3, 1), torch.empty(1, 3).t()) is None, "a stride of a size 1 says nothing"


def test_values_are_kept_true(trace):
    gm = trace(lambda x: x.clone().t().exp(), torch.randn(2, 3))
    mode, before = fake_mode_of(gm.graph), Snapshot(gm.graph)
    x, clone, t, exp, _ = gm.graph.nodes
    clone.replace_all_uses_with(x)
    old_exp = exp.meta["val"]
    refresh_values(gm.graph, before, mode, everything=False)
    assert t.meta["val"].untyped_storage()._cdata == x.meta["val"].untyped_storage()._cdata
    assert exp.meta["val"] is old_exp
    exp.target = aten.sum.default
    with pytest.raises(VerifyError, match="exp is stale"):
        refresh_values(gm.graph, before, mode, everything=False)


def test_a_snapshot_restores_the_graph(trace):
    gm, x = trace(lambda x: x.sin().cos(), torch.randn(3)), torch.randn(3)
    before, text = Snapshot(gm.graph), str(gm.graph)
    assert before.is_current(gm.graph)
    sin = gm.graph.find_nodes(op="call_function", target=aten.sin.default)[0]
    sin.target = aten.tan.default
    assert not before.is_current(gm.graph) and before.changed(gm.graph) == [sin]
    gm.graph = before.restore()
    assert str(gm.graph) == text and torch.equal(gm(x), x.sin().cos())
