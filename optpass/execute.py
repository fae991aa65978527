"""Turns a graph after the fusion stage into a callable, on the runtime of its device."""

from __future__ import annotations

import functools
import linecache
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.fx import GraphModule

from optpass.backends.cache import Store
from optpass.backends.host_memory import pool
from optpass.codegen.ir import Kernel
from optpass.codegen.target import Target
from optpass.errors import CompileError, CompilerMissing, UnsupportedOp
from optpass.plan import read_plan, write_plan
from optpass.program import Program, build_program
from optpass.report import Fallback, GraphReport
from optpass.torch_private import empty_strided_cpu, empty_strided_cuda, reinterpret

Call = Callable[[list[Any]], Sequence[Any]]


class Runtime(Protocol):
    """What a device offers to graphs."""

    target: Target

    def load(self, gm: GraphModule, report: GraphReport) -> Call:
        """Builds the graph's kernels and returns its boxed function.

        A kernel that the target cannot express, or whose build fails, runs through ATen and is reported.

        Raises:
            CompilerMissing: this machine has no compiler for the target.
        """
        ...

    def load_stored(self, key: str | None, make: Callable[[], GraphModule], report: GraphReport) -> Call:
        """The same for the graph that ``make`` gives, unless the store has a plan for ``key``: then that is loaded."""
        ...


class CpuRuntime:
    """C++ kernels, one shared object for a graph, runs of kernels behind one entry point."""

    def __init__(self) -> None:
        from optpass.backends.cpu import cpu_target

        self.target = cpu_target()

    def compiler(self) -> str:
        """The compiler and its flags; raises `CompilerMissing`."""
        from optpass.backends.cpu import compiler_id

        return compiler_id()

    def load(self, gm: GraphModule, report: GraphReport) -> Call:
        from optpass.backends.cpu import build_module

        def build(program: Program) -> dict[str, Callable]:
            module = build_module(program.kernels, program.segments, Store.default())
            report.texts["kernels.cpp"] = module.source
            return {s.name: module.entry(s.name) for s in program.segments}

        program, entries = _build_what_builds(gm, report, build, segmented=True)
        return bind(program, entries)

    def load_stored(self, key: str | None, make: Callable[[], GraphModule], report: GraphReport) -> Call:
        if key is None:
            return self.load(make(), report)
        from optpass.backends.cpu import compile_module, load_module

        made: list[GraphModule] = []

        def build(folder: Path) -> None:
            made.append(make())
            compile_into = lambda program: compile_module(program.kernels, program.segments, folder)
            program, _ = _build_what_builds(made[0], report, compile_into, segmented=True)
            if program.objects:
                raise _NotKept
            write_plan(folder, program, report)

        try:
            folder = Store.default().get_or_build(key, build)
        except _NotKept:
            return self.load(made[0], report)
        text, segments, stored = read_plan(folder)
        if not made:
            report.restore(stored)
        module = load_module(folder) if segments else None
        return _bind(text, {name: getattr(module, name) for name in segments})


class _NotKept(Exception):
    """The program refers to live objects, so it stays in memory."""


class CudaRuntime:
    """Triton kernels, each launched through its compiled form."""

    def __init__(self, index: int) -> None:
        from optpass.backends.cuda import cuda_target

        self.index = index
        self.target = cuda_target(index)

    def compiler(self) -> str:
        import triton

        return f"triton {triton.__version__}"

    def load(self, gm: GraphModule, report: GraphReport) -> Call:
        from optpass.backends.cuda import build_kernels

        def build(program: Program) -> dict[str, Callable]:
            launchers = build_kernels(program.kernels, self.target, Store.default())
            report.texts["kernels.py"] = "\n\n".join(each.source.text for each in launchers.values())
            return {f"launch_{name}": launcher.launch for name, launcher in launchers.items()}

        program, entries = _build_what_builds(gm, report, build, segmented=False)
        return self._on_device(bind(program, entries))

    def load_stored(self, key: str | None, make: Callable[[], GraphModule], report: GraphReport) -> Call:
        return self.load(make(), report)  # Triton keeps its own binaries; plans for GPUs are not kept yet

    def _on_device(self, call: Call) -> Call:
        """Launches go to the current device, which the caller may have left."""

        def run(args: list[Any]) -> Sequence[Any]:
            if torch.cuda.current_device() == self.index:
                return call(args)
            with torch.cuda.device(self.index):
                return call(args)

        return run


@functools.cache
def runtime_for(kind: str, index: int) -> Runtime:
    """The runtime of a device; kept, since finding out about a machine costs time."""
    return CudaRuntime(index) if kind == "cuda" else CpuRuntime()


def reference(gm: GraphModule) -> Call:
    """The graph's boxed function with every fused region run through ATen, operator by operator."""
    return bind(build_program(gm, segmented=False, compiled=False), {})


def bind(program: Program, entries: dict[str, Callable]) -> Call:
    """Executes a program's text; its function sees the entry points and live objects as globals."""
    return _bind(program.text, {**program.objects, **entries})


def _bind(text: str, names: dict[str, Any]) -> Call:
    file = f"<optpass program {next(_count)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope: dict[str, Any] = {
        "empty_strided": torch.empty_strided,
        "empty_strided_cpu": empty_strided_cpu,
        "empty_strided_cuda": empty_strided_cuda,
        "empty_kept": pool.empty_strided,
        "reinterpret": reinterpret,
        "restride": restride,
        **names,
    }
    exec(compile(text, file, "exec"), scope)
    return scope["call"]


_count = iter(range(1 << 62))


def restride(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The same values in memory of the given strides."""
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def _build_what_builds(
    gm: GraphModule, report: GraphReport, build: Callable[[Program], Any], *, segmented: bool
) -> tuple[Program, Any]:
    """Builds a graph's program; kernels that fail on their own are handed to ATen, and the rest is built again."""
    refused: dict[Kernel, str] = {}
    while True:
        program = build_program(gm, segmented=segmented, compiled=True, refused=frozenset(refused))
        start = time.perf_counter()
        try:
            entries = build(program) if program.kernels else {}
        except CompilerMissing:
            raise
        except (UnsupportedOp, CompileError) as error:
            failing = _failing(program, build)
            if not failing:
                raise CompileError(f"the kernels of a graph build one by one, but not together: {error}") from error
            refused |= failing
            continue
        report.add_time("compile kernels", (time.perf_counter() - start) * 1e3)
        report.kernels += program.records
        report.texts["program.py"] = program.text
        report.texts["kernels.txt"] = "\n\n".join(map(str, program.kernels)) + "\n"
        report.fallbacks += [Fallback(kernel.name, reason) for kernel, reason in refused.items()]
        return program, entries


def _failing(program: Program, build: Callable[[Program], Any]) -> dict[Kernel, str]:
    """The kernels that do not build alone, with the reason."""
    out: dict[Kernel, str] = {}
    for kernel in program.kernels:
        try:
            build(Program("", {}, (kernel,), (), ()))
        except (UnsupportedOp, CompileError) as error:
            out[kernel.renamed("")] = error.what
    return out
