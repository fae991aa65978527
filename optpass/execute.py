"""Turns a graph after the fusion stage into a callable, on the runtime of its device."""

from __future__ import annotations

import functools
import linecache
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.fx import GraphModule

from optpass.codegen.target import Target
from optpass.options import Options
from optpass.program import Program, build_program
from optpass.report import GraphReport, KernelRecord
from optpass.torch_private import empty_strided_cpu, reinterpret

Call = Callable[[list[Any]], Sequence[Any]]


class Runtime(Protocol):
    """What a device offers to graphs."""

    target: Target

    def load(self, gm: GraphModule, report: GraphReport) -> Call:
        """Builds the graph's kernels and returns its boxed function.

        Raises:
            CompilerMissing: this machine has no compiler for the target.
            CompileError: a kernel did not build.
        """
        ...


class CpuRuntime:
    """C++ kernels, one shared object for a graph, runs of kernels behind one entry point."""

    def __init__(self, options: Options) -> None:
        from optpass.backends.cache import Store
        from optpass.backends.cpu import cpu_target

        self.target = cpu_target()
        self.store = Store.default() if options.cache else None

    def load(self, gm: GraphModule, report: GraphReport) -> Call:
        from optpass.backends.cpu import build_module

        program = build_program(gm, segmented=True, compiled=True)
        _record(program, report)
        if not program.kernels:
            return bind(program, {})
        start = time.perf_counter()
        module = build_module(program.kernels, program.segments, self.store)
        report.add_time("compile kernels", (time.perf_counter() - start) * 1e3)
        return bind(program, {s.name: module.entry(s.name) for s in program.segments})


class CudaRuntime:
    """Triton kernels, each launched through its compiled form."""

    def __init__(self, options: Options, index: int) -> None:
        from optpass.backends.cache import Store
        from optpass.backends.cuda import cuda_target

        self.target = cuda_target(index)
        self.store = Store.default() if options.cache else None

    def load(self, gm: GraphModule, report: GraphReport) -> Call:
        from optpass.backends.cuda import build_kernels

        program = build_program(gm, segmented=False, compiled=True)
        _record(program, report)
        start = time.perf_counter()
        launchers = build_kernels(program.kernels, self.target, self.store)
        report.add_time("compile kernels", (time.perf_counter() - start) * 1e3)
        return bind(program, {f"launch_{name}": launcher for name, launcher in launchers.items()})


@functools.cache
def runtime_for(kind: str, index: int, options: Options) -> Runtime:
    """The runtime of a device type; kept, since finding out about a machine costs time."""
    return CudaRuntime(options, index) if kind == "cuda" else CpuRuntime(options)


def reference(gm: GraphModule) -> Call:
    """The graph's boxed function with every fused region run through ATen, operator by operator."""
    return bind(build_program(gm, segmented=False, compiled=False), {})


def bind(program: Program, entries: dict[str, Callable]) -> Call:
    """Executes a program's text; its function sees the entry points and live objects as globals."""
    name = f"<optpass program {next(_count)}>"
    linecache.cache[name] = (len(program.text), None, program.text.splitlines(True), name)
    scope: dict[str, Any] = {
        "empty_strided_cpu": empty_strided_cpu,
        "empty_strided": torch.empty_strided,
        "reinterpret": reinterpret,
        "restride": restride,
        **program.objects,
        **entries,
    }
    exec(compile(program.text, name, "exec"), scope)
    return scope["call"]


def restride(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The same values in memory of the given strides."""
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


_count = iter(range(1 << 62))


def _record(program: Program, report: GraphReport) -> None:
    for kernel in program.kernels:
        ops = tuple(dict.fromkeys(o for o in kernel.origins if o))
        report.kernels.append(KernelRecord(kernel.name, ops, 0, 0))
