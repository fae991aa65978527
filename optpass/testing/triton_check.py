"""Checks of printed Triton kernels without a GPU: run under the interpreter, or build ahead of time."""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from optpass.autotune.arch import target
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
