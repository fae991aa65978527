"""The entry point of `torch.compile(model, backend="optpass")`: wires capture, passes, code generation and runtimes."""

from __future__ import annotations

import functools
import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Console
from torch.fx import GraphModule

from optpass import decompositions
from optpass.capture import normalise, why_not_normalise
from optpass.contract import Outputs, checked_once
from optpass.dump import open_dump
from optpass.errors import CaptureError, CompilerMissing, OptpassWarning
from optpass.execute import Runtime, reference, runtime_for
from optpass.options import Options
from optpass.passes.base import PassContext, Stage
from optpass.passes.pipeline import CLEANUP, run_stage
from optpass.passes.recompute import keep_random_numbers_out_of_memory
from optpass.plan import Memo, graph_key
from optpass.program import USER_OUTPUTS
from optpass.report import CompileReport
from optpass.torch_private import (
    aot_module_simplified,
    forward_returns,
    functorch_config,
    min_cut_rematerialization_partition,
)

log = logging.getLogger(__name__)


def optpass(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> Callable[..., Any]:
    """Compiles one graph of Dynamo's.

    Args:
        gm: the captured graph; parameters and buffers are inputs.
        example_inputs: its inputs: real tensors, and ints for symbolic sizes.
        mode: ``default``, ``reduce-overhead`` or ``max-autotune``.
        options: see `optpass.options.Options`.

    Returns:
        A function of the same inputs that gives what the graph gives: dtypes, shapes, strides, aliasing, mutations.

    Raises:
        ConfigError: an option, a mode or a value is unknown.
    """
    chosen = Options.parse(mode, {**(options or {}), **unknown})
    return Compilation(chosen).compile(gm, example_inputs)


class Compilation:
    """One call of the backend: its options, its report and its dump folder."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.report = CompileReport()
        self.dump = open_dump(options)

    def compile(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        gm = self._semantic(gm, inputs)
        return aot_module_simplified(
            gm,
            inputs,
            fw_compiler=partial(self._compile_graph, "forward"),
            bw_compiler=partial(self._compile_graph, "backward"),
            inference_compiler=partial(self._compile_graph, "inference"),
            partition_fn=self._partition,
            decompositions=decompositions.table(self.options.parity),
            keep_inference_input_mutations=True,
        )

    def _semantic(self, gm: GraphModule, inputs: Sequence[Any]) -> GraphModule:
        """The graph after the semantic passes; Dynamo's own where they change nothing or its ATen form cannot be had.

        That they change nothing is remembered on disk, so that the next process need not trace the graph for it.
        """
        ctx, start = self._context("semantic", inputs, True), time.perf_counter()
        reason = why_not_normalise(gm)
        memo = Memo("semantic", gm, inputs, self.options) if reason is None else None
        if memo is not None and memo.is_set():
            return gm
        if reason is None:
            try:
                normal = normalise(gm, inputs)
                ctx.report.add_time("capture", (time.perf_counter() - start) * 1e3)
                normal = run_stage(Stage.SEMANTIC, normal, ctx)
                if any(p.changed for p in ctx.report.passes if p.name not in CLEANUP):
                    return normal
                memo.set()  # type: ignore[union-attr]
                return gm
            except CaptureError as error:
                reason = str(error)
        ctx.decline("normalise", None, reason)
        log.info("optpass: semantic passes are skipped: %s", reason)
        return gm

    def _partition(self, joint: GraphModule, inputs: Sequence[Any], **settings: Any) -> tuple[GraphModule, GraphModule]:
        joint = run_stage(Stage.JOINT, joint, self._context("joint", inputs, False))
        keep_random_numbers_out_of_memory(joint.graph)
        # Common subexpressions are ours to merge (the joint stage has); PyTorch's own pass would load all of Inductor.
        with functorch_config.patch(cse=False):
            return min_cut_rematerialization_partition(joint, inputs, **settings)

    def _compile_graph(self, kind: str, gm: GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Sequence[Any]]:
        ctx = self._context(kind, inputs, kind == "inference")
        if kind == "forward" and (count := forward_returns()) is not None:
            gm.meta[USER_OUTPUTS] = count
        start = time.perf_counter()
        outputs = Outputs.of(gm.graph)
        call = self._build(gm, ctx)
        ctx.report.add_time("total", (time.perf_counter() - start) * 1e3)
        if ctx.dump is not None:
            for name, text in ctx.report.texts.items():
                ctx.dump.write(f"900_{name}", text)
            ctx.dump.write_report(ctx.report)
        if self.options.report:
            Console(stderr=True).print(ctx.report)
        return checked_once(call, outputs, self.options)

    def _build(self, gm: GraphModule, ctx: PassContext) -> Callable[[list[Any]], Sequence[Any]]:
        """The graph's function: kernels where they build, else operator by operator, with a warning that says why."""

        @functools.cache
        def make() -> GraphModule:
            return run_stage(Stage.FUSION, run_stage(Stage.TENSOR, gm, ctx), ctx)

        if self.options.execution == "compiled":
            runtime = self._runtime(ctx.device)
            try:
                key = graph_key(gm, self.options, runtime.target, runtime.compiler()) if self.options.cache else None
                return runtime.load_stored(key, make, ctx.report)
            except CompilerMissing as error:
                _warn_once(f"optpass: {error}; graphs run operator by operator (reference execution)")
            except Exception as error:  # whatever is wrong with our code generation, the user's run goes on
                if self.options.verify == "strict":
                    raise
                log.exception("optpass: code generation failed")
                _warn_once(f"optpass: code generation failed, a graph runs operator by operator: {error}")
        return reference(make())

    def _runtime(self, device: torch.device) -> Runtime:
        return runtime_for(device.type, device.index or 0)

    def _context(self, kind: str, inputs: Sequence[Any], is_inference: bool) -> PassContext:
        device = next((x.device for x in inputs if isinstance(x, torch.Tensor) and x.device.type != "cpu"), None)
        device = device or torch.device("cpu")
        return PassContext(
            options=self.options,
            report=self.report.graph(kind),
            target=self._runtime(device).target,
            device=device,
            is_inference=is_inference,
            dump=self.dump and self.dump.graph(kind),
        )


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, OptpassWarning, stacklevel=3)
