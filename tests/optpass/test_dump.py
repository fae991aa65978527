from __future__ import annotations

import json
import operator
import os
import subprocess
import sys
import warnings

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from optpass.dump import Dump, open_dump
from optpass.options import Options
from optpass.passes.base import PassContext, RewriteCounter, Stage
from optpass.passes.pipeline import run_stage
from optpass.passes.program_text import program_text

pytestmark = pytest.mark.null


def model(x, i, w):
    x = x.sin() * 1.0 + torch.full((), float("-inf")) * 0
    x = torch.nn.functional.embedding(i, w).sum(0) + x.view(2, 3).t().t() / 3
    values, places = x.sort(-1)
    return values.to(torch.bfloat16), places, x.split(1, dim=1), torch.tensor([1.5, float("nan")]) * 2


def traced(dynamic=False):
    inputs = torch.randn(2, 3), torch.tensor([0, 1, 1]), torch.randn(5, 3).t().contiguous().t()
    gm = make_fx(model, tracing_mode="symbolic" if dynamic else "fake")(*inputs)
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = '  File "/src/model.py", line 7, in forward\n    y = x.sin() * 1.0\n'
    return gm


def compiled(folder, dynamic=False):
    options = Options.parse(options={"dump": str(folder)})
    dump = open_dump(options).graph("forward")
    run_stage(Stage.TENSOR, traced(dynamic), PassContext(options, dump=dump, counter=RewriteCounter()))
    return dump.folder


@pytest.mark.parametrize("dynamic", [False, True])
def test_each_program_runs_by_itself(tmp_path, dynamic):
    folder = compiled(tmp_path, dynamic)
    programs = sorted(folder.glob("*.py"))
    names = [path.name for path in programs]
    assert names[0] == "000_capture.py" and names[1].startswith("001_tensor_") and names[1].endswith(".after.py")
    # One interpreter for all: each is run as a script of its own, and importing torch is slow.
    script = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path, run_name='__main__'), print('---')"
    run = subprocess.run([sys.executable, "-c", script, *map(str, programs)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    outputs = set(run.stdout.split("---\n")[:-1])
    assert len(outputs) == 1, "all versions of a graph have the same outputs"
    assert "output 0: torch.bfloat16 [2, 3] strides [3, 1] on cpu" in outputs.pop()


def test_one_program_in_a_plain_process(tmp_path):
    run = subprocess.run([sys.executable, str(compiled(tmp_path) / "000_capture.py")], capture_output=True, text=True)
    assert run.returncode == 0 and "output 0" in run.stdout, run.stderr


def test_contents(tmp_path):
    folder = compiled(tmp_path)
    text = (folder / "000_capture.py").read_text()
    assert "# /src/model.py:7 in forward: y = x.sin() * 1.0" in text
    assert "torch.ops.aten.sin.default(x_1)  # torch.float32 [2, 3]" in text
    (diff,) = folder.glob("*_tensor_remove-noops.diff")
    assert "-    mul = torch.ops.aten.mul.Tensor(sin, 1.0)" in diff.read_text()
    records = json.loads((folder / "rewrites.json").read_text())
    assert {"times-one", "round-trip"} <= {rewrite["rule"] for rewrite in records["rewrites"]}
    assert all(declined["reason"] for declined in records["declined"])
    assert not list(folder.glob(".*"))


def test_sub_graphs_and_constants_are_defined(tmp_path):
    inner = make_fx(lambda x: (x.sin() + torch.tensor(2.0),), tracing_mode="fake")(torch.randn(3))
    owner = torch.nn.Module()
    owner.fused_0, owner.w = inner, torch.nn.Buffer(torch.randn(100))
    graph = torch.fx.Graph(owner)
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3)
    call = graph.call_module("fused_0", (x,))
    graph.output((graph.call_function(operator.getitem, (call, 0)), graph.get_attr("w")))
    gm = torch.fx.GraphModule(owner, graph)
    scope = {"__name__": "dumped"}
    exec(program_text(gm, "title"), scope)
    (value, constant) = scope["graph"](*scope["inputs"]())
    assert value.shape == (3,) and constant.shape == (100,)


def test_folders_are_numbered_across_dumps(tmp_path):
    names = [Dump(tmp_path).graph(kind).folder.name for kind in ("semantic", "forward", "backward")]
    assert names == ["graph_0_semantic", "graph_1_forward", "graph_2_backward"]


def test_a_dump_that_cannot_be_written_costs_one_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="stops here") as caught:
        compiled(tmp_path / "file" / "dump")
    assert len(caught) == 1


def test_a_full_disk_costs_one_warning_and_leaves_no_fragment(tmp_path, monkeypatch):
    dump = Dump(tmp_path).graph("forward")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space left") as caught:
        dump.write("a.py", "text")
        dump.write("b.py", "text")
    assert len(caught) == 1 and not list(dump.folder.iterdir())


def test_a_graph_without_text_costs_one_warning(tmp_path):
    class Odd(torch.fx.GraphModule):
        graph = property(lambda self: 1 / 0)

    dump = Dump(tmp_path).graph("forward")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert dump.render(Odd.__new__(Odd)) == ""
    assert len(caught) == 1
