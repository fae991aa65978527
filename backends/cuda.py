"""NVIDIA GPUs: what the card can do, and launching Triton kernels through their compiled form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from optpass.autotune.arch import gpu_target
from optpass.backends.cache import Store
from optpass.backends.triton_build import ALIGNMENT, compile_source, in_parallel, sources
from optpass.codegen.ir import Kernel
from optpass.codegen.printers.base import ExprPrinter
from optpass.codegen.printers.triton import TritonSource
from optpass.codegen.target import Target
from optpass.torch_private import current_raw_stream


def cuda_target(device_index: int) -> Target:
    """The target of an NVIDIA card of this machine."""
    card = torch.cuda.get_device_properties(device_index)
    arch = f"sm_{card.major}{card.minor}"
    return gpu_target(arch, card.multi_processor_count, card.shared_memory_per_block_optin)


def build_kernels(kernels: Sequence[Kernel], target: Target, store: Store | None = None) -> dict[str, Launcher]:
    """Compiles kernels, several at a time, and gives a launcher for each by name.

    Raises:
        UnsupportedOp: a kernel needs what the target or Triton lacks.
        CompileError: a kernel did not build.
    """
    launchers = [Launcher(s, target.arch, store) for s in sources(kernels, target)]
    in_parallel(Launcher.build, launchers)
    return {launcher.source.name: launcher for launcher in launchers}


class Launcher:
    """Launches one kernel, called as ``launcher(*tensors, *sizes, *scalars)``.

    The launch is asynchronous, on the current stream of the current device, which must be the tensors' device. Nothing
    is checked but the alignment of the tensors: where one is not aligned to 16 bytes, a second build is used that does
    not rely on it, made at the first such call.

    Attributes:
        source: the printed kernel.
        launch: the same as calling the launcher, without the call of `__call__` in between.
    """

    def __init__(self, source: TritonSource, arch: str, store: Store | None = None) -> None:
        self.source, self._arch, self._store = source, arch, store
        self._builds: dict[bool, Any] = {}
        self._loaded = _Loaded(self)
        self.launch: Callable[..., None] = _launch_function(source, self._loaded)

    def __call__(self, *args: Any) -> None:
        self.launch(*args)

    def build(self, aligned: bool = True) -> Any:
        """The compiled kernel, built on first use. Loading it onto the device waits for the first launch."""
        if aligned not in self._builds:
            self._builds[aligned] = compile_source(self.source, self._arch, self._store, aligned=aligned)
        return self._builds[aligned]

    @property
    def registers(self) -> tuple[int, int] | None:
        """Registers of a thread and those of them that spilled, once the aligned build has been launched."""
        build = self._builds.get(True)
        return None if build is None or build.n_regs is None else (build.n_regs, build.n_spills)


class _Loaded(dict):
    """For aligned and unaligned pointers: launcher, function and metadata of the loaded build, and its device."""

    def __init__(self, owner: Launcher) -> None:
        self._owner = owner

    def __missing__(self, aligned: bool) -> tuple:
        build = self._owner.build(aligned)
        # `run` loads the module, on the current device.
        self[aligned] = (build.run, build.function, build.packed_metadata, torch.cuda.current_device())
        return self[aligned]


def _launch_function(source: TritonSource, loaded: _Loaded) -> Callable[..., None]:
    """A function written for one signature: a launch costs few microseconds, of which generic Python would be most."""
    parameters = [name for name, kind in source.signature if kind != "constexpr"]
    pointers = [name for name, kind in source.signature if kind.startswith("*")]
    constants = [str(value) for _, value in source.constants]
    programs = _Python()(source.programs)
    lines = [f"def launch({', '.join(parameters)}):"]
    if not source.programs.is_Integer:
        lines += [f"    programs = {programs}", "    if programs == 0:", "        return"]
        programs = "programs"
    lines += [f"    {p} = {p}.data_ptr()" for p in pointers]
    lines += [
        f"    run, function, metadata, device = loaded[({' | '.join(pointers)}) % {ALIGNMENT} == 0]",
        f"    run({programs}, 1, 1, stream(device), function, metadata, None, None, None, "
        f"{', '.join(parameters + constants)})",
    ]
    if source.programs == 0:
        lines[1:] = ["    return"]
    scope: dict[str, Any] = {"loaded": loaded, "stream": current_raw_stream}
    exec("\n".join(lines), scope)
    return scope["launch"]


class _Python(ExprPrinter):
    """Sizes as Python evaluates them."""

    div, mod = "//", "%"
    max, min = "max", "min"

    def _quotient(self, a: Any, b: Any, operator: str, function: str) -> tuple[str, int]:
        del function  # Python's own operators round to minus infinity
        return f"({self(a)}) {operator} ({self(b)})", 2
