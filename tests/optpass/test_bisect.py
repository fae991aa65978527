from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from optpass.bisect import bisect
from optpass.cli import main
from optpass.errors import OptpassError

pytestmark = pytest.mark.null

# Rewrites of one graph through a pass that is wrong at the node named in BAD; stands for a user's program.
PROGRAM = """
import sys
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from optpass.dump import open_dump
from optpass.options import Options
from optpass.passes.base import Pass, PassContext, Stage
from optpass.passes.pipeline import run_passes

class Doubling(Pass):
    name = "doubling"

    def run(self, gm, ctx):
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
            if ctx.apply("double", node):
                times = 2 if node.name != "BAD" else 3
                node.args = (node.args[0], float(times))

def f(x):
    for _ in range(2):
        x = x * 2
    return x

options, x = Options.parse(), torch.ones(2)
gm = make_fx(f, tracing_mode="fake")(x)
for node in gm.graph.nodes:
    node.meta["stack_trace"] = '  File "user.py", line 4, in f\\n    x = x * 2\\n'
ctx = PassContext(options, dump=open_dump(options) and open_dump(options).graph("forward"))
run_passes([Doubling()], Stage.TENSOR, gm, ctx)
sys.exit(not torch.equal(gm(x), f(x)))
"""


@pytest.fixture
def program(tmp_path):
    def write(bad):
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(PROGRAM).replace("BAD", bad))
        return [sys.executable, str(path)]

    return write


def test_the_guilty_rewrite_is_found(program, capsys):
    command = program("mul_1")
    assert main(["bisect", " ".join(command)]) == 0
    text = capsys.readouterr().out
    assert "rewrite 2 is the first" in text
    assert "double, of pass doubling in stage tensor" in text
    assert "mul_1" in text and "user.py:4 in f: x = x * 2" in text


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit(3)", "fails without any rewrite"),
        ("", "does not fail"),
        ("import os; raise SystemExit(os.environ['OPTPASS_BISECT_LIMIT'] != '0')", "no rewrite was recorded"),
    ],
)
def test_programs_that_cannot_be_bisected(code, message):
    with pytest.raises(OptpassError, match=message):
        bisect([sys.executable, "-c", code])


def test_the_search_is_logarithmic(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import json, os, pathlib, sys
            limit = min(int(os.environ["OPTPASS_BISECT_LIMIT"]), 1000)
            folder = pathlib.Path(os.environ["OPTPASS_DUMP"], "graph_0_forward")
            folder.mkdir(parents=True)
            record = dict(stage="s", pass_name="p", rule="r", nodes=["n"], source="")
            rewrites = [{"number": n, **record} for n in range(1, limit + 1)]
            (folder / "rewrites.json").write_text(json.dumps({"rewrites": rewrites}))
            sys.exit(limit >= 613)
            """
        )
    )
    guilty = bisect([sys.executable, str(program)])
    assert guilty.number == 613 and guilty.runs <= 12


def test_errors_of_the_command_line(capsys):
    assert main(["bisect"]) == 1
    assert "no program to run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["unknown"])


def test_the_cache_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPTPASS_CACHE_DIR", str(tmp_path))
    assert main(["cache", "stats"]) == 0
    assert main(["cache", "clear"]) == 0
    assert str(tmp_path) in capsys.readouterr().out


def test_the_command_runs_as_a_module():
    run = subprocess.run([sys.executable, "-m", "optpass.cli", "--help"], capture_output=True, text=True)
    assert run.returncode == 0 and "bisect" in run.stdout
