"""From a printed kernel to a compiled one, for a card that need not be there. Shared by CUDA and ROCm."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from optpass.backends.cache import Store
from optpass.codegen.ir import Kernel
from optpass.codegen.printers.triton import TritonSource, emit
from optpass.codegen.target import Target
from optpass.codegen.tiles import arrange, tile
from optpass.errors import CompileError, OptpassError

#: Pointers that are multiples of it may be accessed a vector at a time.
ALIGNMENT = 16


def sources(kernels: Sequence[Kernel], target: Target) -> list[TritonSource]:
    """Prints kernels with their default tiles."""
    arranged = [arrange(k) for k in kernels]
    return [emit(k, tile(k, target), target) for k in arranged]


def in_parallel(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Applies a function to all items, a thread per processor: builds spend their time outside Python's lock."""
    if len(items) < 2:
        return [function(i) for i in items]
    with ThreadPoolExecutor(min(len(items), os.cpu_count() or 1)) as pool:
        return list(pool.map(function, items))


def compile_source(source: TritonSource, arch: str, store: Store | None = None, *, aligned: bool = True) -> Any:
    """Triton's compiled form of a source, not loaded on any device.

    Args:
        arch: ``sm_90``, ``gfx942``, …
        store: keeps the source text (Triton reads functions from files, and keeps its binaries in its own cache).
        aligned: whether every pointer is a multiple of `ALIGNMENT` bytes.

    Raises:
        CompileError: Triton or the assembler rejected the source.
    """
    pointers = [i for i, (_, kind) in enumerate(source.signature) if kind.startswith("*")]
    try:
        function = getattr(_module(source.text, store), source.name)
        ast = ASTSource(
            function,
            signature=dict(source.signature),
            constexprs=dict(source.constants),
            attrs={(i,): [["tt.divisibility", ALIGNMENT]] for i in pointers} if aligned else {},
        )
        return triton.compile(ast, target=gpu(arch), options=_options(source))
    except OptpassError:
        raise
    except Exception as e:
        raise CompileError(f"kernel {source.name} did not build for {arch}", source=source.text, log=str(e)) from e


def gpu(arch: str) -> GPUTarget:
    """Triton's name of an architecture."""
    return GPUTarget("cuda", int(arch[3:]), 32) if arch.startswith("sm_") else GPUTarget("hip", arch, 64)


def _options(source: TritonSource) -> dict[str, Any]:
    return {
        "num_warps": source.num_warps,
        "num_stages": 1,
        # The number model: no contraction of a product and a sum, denormals are kept.
        "enable_fp_fusion": False,
        "enable_reflect_ftz": False,
        # Device assertions need debug mode; its checks of integer overflow would trap arithmetic that wraps.
        "debug": source.checks,
        "sanitize_overflow": False,
    }


def _module(text: str, store: Store | None) -> ModuleType:
    write = lambda folder: (folder / "kernel.py").write_text(text)
    folder = store.get_or_build(text, write) if store else _temporary(text)
    spec = importlib.util.spec_from_file_location(f"optpass_kernel_{folder.name}", folder / "kernel.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _temporary_root() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="optpass-triton-")


def _temporary(text: str) -> Path:
    folder = Path(tempfile.mkdtemp(dir=_temporary_root().name))
    (folder / "kernel.py").write_text(text)
    return folder
