"""The benchmarks run end to end on tiny sizes, and their tables say what the figures say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def benchmarks(*arguments: object) -> str:
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout


def result(workload: str, backend: str, milliseconds: float | None, **more: object) -> dict[str, object]:
    row = {"workload": workload, "group": "chain", "backend": backend, "milliseconds": milliseconds, "peak_bytes": None}
    return {**row, "quartiles": None, "error": None, "cold_s": None, "warm_s": None, "failure": None, **more}


@pytest.mark.cpu
def test_a_quick_run_fills_every_column(tmp_path):
    file = tmp_path / "results.json"
    options = ["--quick", "--device", "cpu", "--backends", "eager,optpass", "--json", file]
    shown = benchmarks("run", "--only", "layernorm-train/bf16", *options)
    document = json.loads(file.read_text())
    rows = {row["backend"]: row for row in document["results"]}
    assert set(rows) == {"eager", "optpass"} and "layernorm-train/bf16" in shown
    for row in rows.values():
        assert row["failure"] is None and row["milliseconds"] > 0 and row["peak_bytes"] > 0
        assert 1e-4 < row["error"] < 2e-2  # rounding of bfloat16 is there, and nothing else
    assert rows["optpass"]["cold_s"] > rows["optpass"]["warm_s"] - 1
    assert document["machine"]["torch"]


@pytest.mark.null
def test_tables_hold_ratios_and_geometric_means(tmp_path):
    file, page = tmp_path / "results.json", tmp_path / "page.md"
    times = {"a": (4.0, 2.0, 1.0), "b": (4.0, 4.0, 4.0)}
    rows = [
        result(workload, backend, ms)
        for workload, row in times.items()
        for backend, ms in zip(("eager", "inductor", "optpass"), row)
    ]
    rows += [result("c", "eager", 1.0), result("c", "optpass", None, failure="RuntimeError: no")]
    file.write_text(json.dumps({"machine": {"device": "toy", "threads": None}, "results": rows}))
    page.write_text("before\n<!-- benchmarks: begin -->\nold\n<!-- benchmarks: end -->\nafter\n")
    benchmarks("table", file, "--update", page)
    text = page.read_text()
    assert "old" not in text and text.startswith("before") and text.endswith("after\n")
    assert "| a | 4.000 | 2.000 | 1.000 | 2.00× | 4.00× | 2.00× |" in text
    assert "| geometric mean, chain (3) |  |  |  | 1.41× | 2.00× | 1.41× |" in text
    assert "| c | 1.000 | – | – | – | – | – |" in text
    assert "Measured on: device toy.\n" in text
