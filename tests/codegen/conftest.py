"""Functions lowered to kernels and run by the IR's interpreter, without Dynamo or a compiler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from optpass.autotune.arch import target
from optpass.codegen.ir import Kernel
from optpass.decompositions import table
from optpass.options import Options
from optpass.passes.base import PassContext, Stage
from optpass.passes.fusion.fuse_regions import FuseRegions
from optpass.passes.pipeline import run_passes
from optpass.report import GraphReport
from optpass.testing.runtimes import InterpretedRuntime


@dataclasses.dataclass
class Lowered:
    """What a function became: ``declined`` maps nodes that stayed with ATen to the reason."""

    kernels: list[Kernel]
    results: list[torch.Tensor]
    declined: dict[str, str]


@pytest.fixture
def lowered() -> Callable[..., Lowered]:
    def run(fn, *inputs, dynamic: bool = False, **options) -> Lowered:
        gm = make_fx(fn, tracing_mode="symbolic" if dynamic else "fake", decomposition_table=table("fast"))(*inputs)
        (output,) = gm.graph.find_nodes(op="output")
        if not isinstance(output.args[0], list | tuple):
            output.args = ((output.args[0],),)
        card = dataclasses.replace(target("sm_90"), device="cpu")
        ctx = PassContext(Options.parse(None, {"verify": "strict", **options}), GraphReport("test"), target=card)
        run_passes([FuseRegions()], Stage.FUSION, gm, ctx)
        runtime = InterpretedRuntime()
        results = list(runtime.load(gm, ctx.report)([x.clone() for x in inputs]))
        return Lowered(runtime.kernels, results, {d.node: d.reason for d in ctx.report.declined})

    return run
