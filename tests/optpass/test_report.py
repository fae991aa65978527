from __future__ import annotations

import json

import pytest

from optpass.report import CompileReport, Declined, Fallback, KernelRecord, PassRecord, Rewrite

pytestmark = pytest.mark.null


@pytest.fixture
def report():
    report = CompileReport()
    graph = report.graph("forward")
    graph.passes.append(PassRecord("tensor", "remove-noops", 1.25, 1, True))
    graph.rewrites.append(Rewrite(7, "tensor", "remove-noops", "times-one", ("mul",), "m.py:3 in f: [x] * 1", 2048, 0))
    graph.declined.append(Declined("tensor", "remove-noops", "plus-zero", "add", "-0.0 + 0.0 is +0.0", ""))
    graph.kernels.append(KernelRecord("fused_0", ("add", "mul"), 4096, 10, bytes_apart=12288))
    graph.fallbacks.append(Fallback("sort", "no kernel"))
    graph.add_time("build", 10)
    graph.add_time("build", 2)
    return report


def test_as_data(report):
    data = json.loads(json.dumps(report.to_dict()))
    assert data["graphs"][0]["rewrites"][0]["number"] == 7
    assert data["graphs"][0]["timings_ms"] == {"build": 12}


def test_as_text(report):
    text = str(report)
    for piece in ("forward", "remove-noops", "times-one", "2,048 → 0", "[x] * 1", "is +0.0", "fused_0", "no kernel"):
        assert piece in text


def test_an_empty_report_has_a_text():
    report = CompileReport()
    report.graph("inference")
    assert "inference" in str(report)
