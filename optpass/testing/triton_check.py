"""Checks of printed Triton kernels without a GPU: run under the interpreter, or build ahead of time."""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from optpass.autotune.arch import target
from optpass.codegen import interpret
from optpass.codegen.expr import Symbol
from optpass.codegen.ir import Kernel
from optpass.codegen.printers.triton import TritonSource, emit
from optpass.codegen.tiles import Tile, arrange, tile


def run_interpreted(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    sizes: Mapping[Symbol, int] | None = None,
    scalars: Mapping[str, bool | int | float] | None = None,
    *,
    choice: Tile | None = None,
) -> None:
    """Prints ``kernel`` for sm_90 and executes it under Triton's interpreter; outputs are written in place.

    Takes the arguments of `codegen.interpret.run`.

    Args:
        choice: a tile of the arranged kernel instead of the default one.

    Raises:
        RuntimeError: the interpreter failed; the message holds the kernel's text.
    """
    kernel, sizes, scalars = arrange(kernel), dict(sizes or {}), scalars or {}
    source = emit(kernel, choice or tile(kernel, target("sm_90")), target("sm_90"))
    programs = int(source.programs.subs(sizes))
    if programs == 0:
        return
    pointers = [tensors[b.name] for b in kernel.buffers]
    memory = [(_bytes(t), t.dtype, t.storage_offset()) for t in pointers]
    values = [sizes[s] for s in kernel.sizes]
    values += [int(v) if isinstance(v, bool) else v for v in (scalars[s.name] for s in kernel.scalars)]
    values += [value for _, value in source.constants]
    results, error = _ask(str(write(source)), source.name, programs, memory, values)
    if error:
        raise RuntimeError(f"{error}\n{source.text}")
    for old, new in zip(pointers, results):
        _bytes(old).copy_(new)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a build for an architecture takes.

    Attributes:
        registers: 32-bit registers of a thread.
        stack_bytes: memory of a thread: spilled registers, and tables of library functions (sin, cos, tan).
        shared_bytes: shared memory of a program.
        text: PTX or AMD assembly.
    """

    registers: int
    stack_bytes: int
    shared_bytes: int
    text: str


def run_on_gpu(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    sizes: Mapping[Symbol, int] | None = None,
    scalars: Mapping[str, bool | int | float] | None = None,
    *,
    choice: Tile | None = None,
) -> None:
    """`run_interpreted` on the GPU of this machine: CPU tensors are copied there and back."""
    from optpass.backends.cuda import Launcher, cuda_target

    card = cuda_target(torch.cuda.current_device())
    kernel = arrange(kernel)
    launch = Launcher(emit(kernel, choice or tile(kernel, card), card), card.arch)
    memory = {n: _bytes(t).cuda() for n, t in tensors.items()}
    pointers = [memory[b.name][tensors[b.name].storage_offset() * b.dtype.itemsize :] for b in kernel.buffers]
    launch(*pointers, *((sizes or {})[s] for s in kernel.sizes), *((scalars or {})[s.name] for s in kernel.scalars))
    for n, t in tensors.items():
        _bytes(t).copy_(memory[n])


def check(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    sizes: Mapping[Symbol, int] | None = None,
    scalars: Mapping[str, bool | int | float] | None = None,
    *,
    choice: Tile | None = None,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """Asserts that the printed kernel does what the IR's interpreter does, on the GPU too where there is one.

    Buffers must agree in every byte, but for floats within the tolerance (without one, signs of zeros agree too, except
    on a GPU). The GPU gets four times the tolerance: its mathematical functions are other ones. ``tensors`` are left as
    they are.
    """
    expected = {n: _copy(t) for n, t in tensors.items()}
    interpret.run(kernel, expected, sizes, scalars)
    for run, slack in ((run_interpreted, 1), (run_on_gpu, 4))[: 1 + torch.cuda.is_available()]:
        actual = {n: _copy(t) for n, t in tensors.items()}
        run(kernel, actual, sizes, scalars, choice=choice)
        for buffer in kernel.buffers:
            a, e = actual[buffer.name], expected[buffer.name]
            if a.is_floating_point() and a.element_size() == 1:
                a, e = a.float(), e.float()
            message = lambda m, run=run: f"{run.__name__}: {m}\n{kernel}"
            torch.testing.assert_close(a, e, rtol=slack * rtol, atol=slack * atol, equal_nan=True, msg=message)
            # The sign of max(-0.0, 0.0) is the machine's choice.
            if a.is_floating_point() and not rtol and run is run_interpreted:
                numbers = ~e.isnan()
                assert torch.equal(a.signbit()[numbers], e.signbit()[numbers]), message("sign of zero")


def _copy(t: Tensor) -> Tensor:
    """A copy with the same memory around it."""
    storage = t.untyped_storage().clone()
    return torch.empty(0, dtype=t.dtype).set_(storage, t.storage_offset(), t.shape, t.stride())


def build_ahead(kernel: Kernel, arch: str, *, choice: Tile | None = None, aligned: bool = True) -> Resources:
    """Builds ``kernel`` for an architecture of the table, without a device.

    Raises:
        CompileError: Triton or the assembler rejected the kernel.
    """
    from optpass.backends.triton_build import compile_source

    kernel = arrange(kernel)
    source = emit(kernel, choice or tile(kernel, target(arch)), target(arch))
    built = compile_source(source, arch, aligned=aligned)
    if arch.startswith("gfx"):
        text = built.asm["amdgcn"]
        figure = lambda name: int(re.search(rf"\.{name}:\s*(\d+)", text)[1])
        return Resources(figure("vgpr_count"), 4 * figure("vgpr_spill_count"), built.metadata.shared, text)
    usage = _cuobjdump(built.asm["cubin"])
    figure = lambda name: int(re.search(rf"\b{name}:(\d+)", usage)[1])
    return Resources(figure("REG"), figure("STACK"), built.metadata.shared, built.asm["ptx"])


def _cuobjdump(binary: bytes) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        return subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout


def _bytes(tensor: Tensor) -> Tensor:
    """The whole memory behind a tensor."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def write(source: TritonSource) -> Path:
    """Writes a source to a temporary folder, under a name made from its content."""
    path = Path(_folder()) / f"{hashlib.sha256(source.text.encode()).hexdigest()[:16]}.py"
    path.write_text(source.text)
    return path


@cache
def _folder() -> str:
    folder = tempfile.TemporaryDirectory(prefix="optpass-triton-")
    atexit.register(folder.cleanup)
    return folder.name


@cache
def _worker() -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "optpass.testing.triton_worker"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _ask(*request: object) -> tuple:
    worker = _worker()
    try:
        pickle.dump(request, worker.stdin)
        worker.stdin.flush()
        return pickle.load(worker.stdout)
    except (EOFError, BrokenPipeError) as e:
        _worker.cache_clear()
        raise RuntimeError(f"the interpreter process died (exit status {worker.wait()})") from e
