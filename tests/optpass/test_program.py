"""The program's text: what is emitted, what is not, when values are freed, and in which order effects happen."""

from __future__ import annotations

import pytest
import torch

import optpass.testing.runtimes as runtimes
from optpass.testing import check_program, tensor

pytestmark = pytest.mark.null


@pytest.fixture
def text(monkeypatch):
    """The text of the last program of a function, after a check against eager."""
    torch._dynamo.reset()
    seen = []
    build = runtimes.build_program

    def spy(*args, **kwargs):
        seen.append(build(*args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(runtimes, "build_program", spy)

    def run(fn, *inputs, dynamic=None):
        with runtimes.interpreted():
            check_program(fn, inputs, options={"cache": False}, dynamic=dynamic)
        return seen[-1].text

    return run


def lines(text):
    return [line.strip() for line in text[text.index("def call") :].splitlines()[1:]]


def test_arguments_are_taken_over_and_freed(text):
    out = lines(text(lambda x, y: x.sin() @ y, tensor((3, 4)), tensor((4, 5), seed=1)))
    assert out[1] == "args.clear()"
    launch = next(k for k, line in enumerate(out) if line.startswith("launch_"))
    assert out[launch + 1] == "del arg0_1"
    product = next(k for k, line in enumerate(out) if "torch.mm(" in line)
    assert out[product + 1].startswith("del ") and out[-1] == "return (mm,)"


def test_views_cost_a_header_and_no_operator(text):
    out = text(lambda x: x.sin().t()[1:].unsqueeze(0), tensor((3, 4)))
    assert out.count("reinterpret(") == 1 and "torch.ops" not in out


def test_an_input_that_nobody_reads_is_dropped_at_once(text):
    out = lines(text(lambda x, y: x + 1, tensor((3,)), tensor((3,), seed=1)))
    assert "y" not in "".join(line for line in out if line.startswith("launch"))


def test_equal_kernels_are_one(text):
    out = text(lambda x, y: (x.sin() @ y).sin() @ y, tensor((4, 4)), tensor((4, 4), seed=1))
    assert out.count("launch_k0_") == 2 and "launch_k1_" not in out


def test_sizes_come_from_inputs(text):
    out = text(lambda x: torch.cat([x.sin(), x], 0) * x.shape[0], tensor((3, 4)), dynamic=True)
    assert "empty_strided_cpu((2*" in out.replace(" ", "") or "2*arg0_1" in out


def test_writes_follow_reads(text):
    def fn(x):
        y = x @ x
        x.copy_(x + 1)
        return y @ x

    out = lines(text(fn, tensor((3, 3))))
    copy = next(k for k, line in enumerate(out) if "copy_" in line)
    assert any("torch.mm(" in line for line in out[:copy])


def test_outputs_that_are_no_tensors(text):
    out = text(lambda x: (x + 1, x.shape[0] * 2), tensor((3, 4)), dynamic=True)
    assert "return (" in out
