"""Runtimes that build nothing: graphs whose kernels run in the IR's interpreter, or in Triton's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.fx import GraphModule

import optpass.backend
from optpass.autotune.arch import target
from optpass.codegen import interpret
from optpass.codegen.ir import Kernel
from optpass.execute import Call, bind
from optpass.program import build_program
from optpass.report import GraphReport


class InterpretedRuntime:
    """Runs CPU graphs with each kernel under an interpreter; ``kernels`` lists what was launched.

    Args:
        run: takes a kernel, its tensors, sizes and scalars by name, as `codegen.interpret.run` does.
        arch: the architecture for which graphs are fused.
    """

    def __init__(self, run: Callable[..., None] = interpret.run, arch: str = "sm_90") -> None:
        self.target = dataclasses.replace(target(arch), device="cpu")
        self.run, self.kernels = run, []

    def load(self, gm: GraphModule, report: GraphReport) -> Call:
        program = build_program(gm, segmented=False, compiled=True)
        report.kernels += program.records
        return bind(program, {f"launch_{k.name}": self._launcher(k) for k in program.kernels})

    def compiler(self) -> str:
        return "interpreter"

    def load_stored(self, key: str | None, make: Callable[[], GraphModule], report: GraphReport) -> Call:
        return self.load(make(), report)

    def _launcher(self, kernel: Kernel) -> Callable[..., None]:
        names: tuple[Sequence[Any], ...] = (
            [b.name for b in kernel.buffers],
            kernel.sizes,
            [s.name for s in kernel.scalars],
        )

        def launch(*arguments: Any) -> None:
            self.kernels.append(kernel)
            rest = iter(arguments)
            self.run(kernel, *({name: next(rest) for name in group} for group in names))

        return launch


@contextmanager
def interpreted(run: Callable[..., None] = interpret.run, arch: str = "sm_90") -> Iterator[InterpretedRuntime]:
    """Everything compiled meanwhile by ``backend="optpass"`` runs in an `InterpretedRuntime`, which is given."""
    runtime = InterpretedRuntime(run, arch)
    with mock.patch.object(optpass.backend, "runtime_for", lambda *_: runtime):
        yield runtime
