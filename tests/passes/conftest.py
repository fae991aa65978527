"""How the tests of passes trace a function, run passes on it and compare."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from optpass.options import Options
from optpass.passes.base import PassContext, RewriteCounter, Stage
from optpass.passes.meta import meta_difference
from optpass.passes.pipeline import run_passes
from optpass.report import GraphReport
from optpass.torch_private import storage_id, tree_leaves


@dataclass
class Outcome:
    """A graph after passes, and their report."""

    gm: GraphModule
    report: GraphReport

    @property
    def rules(self) -> Counter[str]:
        return Counter(rewrite.rule for rewrite in self.report.rewrites if rewrite.rolled_back is None)

    @property
    def reasons(self) -> dict[str, str]:
        return {declined.rule: declined.reason for declined in self.report.declined}

    @property
    def ops(self) -> list[str]:
        """What the graph calls, in order, without namespace."""
        return [str(node.target).removeprefix("aten.") for node in self.gm.graph.nodes if node.op == "call_function"]


def context(**options: Any) -> PassContext:
    return PassContext(Options.parse(options=options), counter=RewriteCounter())


def storages(values: list[Any]) -> list[int]:
    pointers = [storage_id(v) for v in values if isinstance(v, torch.Tensor)]
    return [pointers.index(pointer) for pointer in pointers]


def same_bits(a: Any, b: Any) -> None:
    if not isinstance(a, torch.Tensor):
        assert a == b
        return
    assert meta_difference(a, b) is None
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    if a.dtype.is_floating_point:
        assert torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())


def results(function: Callable[..., Any], inputs: tuple[Any, ...]) -> list[Any]:
    """Inputs after the call, and outputs."""
    inputs = copy.deepcopy(inputs)
    torch.manual_seed(1)
    return [*inputs, *tree_leaves(function(*inputs))]


@pytest.fixture
def trace() -> Callable[..., GraphModule]:
    """Trace a function to ATen, `dynamic=True` with symbolic sizes."""

    def traced(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> GraphModule:
        return make_fx(function, tracing_mode="symbolic" if dynamic else "fake")(*inputs)

    return traced


@pytest.fixture
def rewrite(trace: Callable[..., GraphModule]) -> Callable[..., Outcome]:
    """Run passes over a function under numeric verification and check all that must hold after any pass.

    The results on the given inputs are the same bits with the same strides, outputs alias inputs and each other as in
    eager, nothing was rolled back, and a second run finds nothing to do.
    """

    def run(passes: Any, function: Callable[..., Any], *inputs: Any, **settings: Any) -> Outcome:
        dynamic, stage = settings.pop("dynamic", False), settings.pop("stage", Stage.TENSOR)
        chosen = [kind() for kind in (passes if isinstance(passes, list) else [passes])]
        gm = trace(function, *inputs, dynamic=dynamic)
        reports = []
        for _ in range(2):
            ctx = context(**{"verify": "strict", **settings})
            run_passes(chosen, stage, gm, ctx)
            reports.append(ctx.report)
        assert not reports[1].rewrites, "a second run must change nothing"
        expected, actual = results(function, inputs), results(gm, inputs)
        for a, b in zip(expected, actual, strict=True):
            same_bits(a, b)
        assert storages(expected) == storages(actual)
        return Outcome(gm, reports[0])

    return run
