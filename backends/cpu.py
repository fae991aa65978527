"""The CPU runtime: detects the machine and its compiler, builds kernels into an extension module and loads it."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

import optpass.codegen.printers as printers
from optpass.backends.cache import Store
from optpass.codegen.ir import Kernel
from optpass.codegen.printers.cpp import CppPrinter
from optpass.codegen.printers.cpp_module import MODULE, ModuleSource, module_source
from optpass.codegen.segment import Segment
from optpass.codegen.target import Target
from optpass.errors import CompileError, CompilerMissing

_HEADERS = Path(printers.__file__).parent

#: NaN, infinities, signed zeros and the order of operations stay as written (never -ffast-math, no fused
#: multiply-add of two written operations); only errno and trap bookkeeping, which blocks vectorisation, is given up.
_FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-w",
    "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off",
)  # fmt: skip


@dataclass(frozen=True)
class BuiltModule:
    """A loaded module.

    Attributes:
        source: its C++ text.
        path: the shared library.
        compile_seconds: time that the compiler took; 0 where the library came from the store.
    """

    source: str
    path: Path
    compile_seconds: float
    module: ModuleType

    def entry(self, name: str) -> Callable[..., None]:
        """The entry point of a segment: ``entry(*tensors, *sizes, *scalars)``.

        Tensors are CPU tensors of the dtypes and layouts that the kernels were made for (nothing is checked); outputs
        are written in place. Runs without the GIL on PyTorch's OpenMP threads. Raises IndexError where a kernel's index
        check failed, MemoryError where scratch memory ran out.
        """
        return getattr(self.module, name)


@functools.cache
def cpu_target() -> Target:
    """The machine that this process runs on."""
    flags = _cpu_flags()
    arch, vector_bytes = platform.machine(), 16
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        arch, vector_bytes = "x86-64-avx512", 64
    elif {"avx2", "fma"} <= flags:
        arch, vector_bytes = "x86-64-avx2", 32
    known = CppPrinter.types.keys() | CppPrinter.memory_types.keys()
    every = {d for d in vars(torch).values() if isinstance(d, torch.dtype)}
    return Target(
        kind="cpp",
        device="cpu",
        arch=arch,
        units=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        vector_bytes=vector_bytes,
        row_bytes=_l2_bytes() // 2,
        unsupported=frozenset(every - known),
    )


def build_module(kernels: Sequence[Kernel], segments: Sequence[Segment], store: Store) -> BuiltModule:
    """Prints, compiles (unless the store has it) and loads the kernels, with one entry point for each segment.

    Raises:
        UnsupportedOp: a kernel holds something that C++ kernels cannot express.
        CompilerMissing: there is no usable C++ compiler.
        CompileError: the compiler rejected the source.
    """
    source = module_source(kernels, segments, cpu_target())
    seconds = 0.0

    def build(folder: Path) -> None:
        nonlocal seconds
        start = time.perf_counter()
        _compile(source, folder)
        seconds = time.perf_counter() - start

    headers = "".join(h.read_text() for h in sorted(_HEADERS.glob("*.h")))
    abi = f"{sys.implementation.cache_tag} {sysconfig.get_config_var('EXT_SUFFIX')}"
    key = "\n".join(["cpu", compiler_id(), abi, hashlib.sha256((headers + source.text).encode()).hexdigest()])
    path = store.get_or_build(key, build) / "module.so"
    return BuiltModule(source.text, path, seconds, _load(path))


def compile_module(kernels: Sequence[Kernel], segments: Sequence[Segment], folder: Path) -> None:
    """Prints and compiles the kernels into a folder, for `load_module`. Raises what `build_module` raises."""
    _compile(module_source(kernels, segments, cpu_target()), folder)


def load_module(folder: Path) -> ModuleType:
    """Loads what `compile_module` left in a folder; its functions are the segments' entry points."""
    return _load(folder / "module.so")


@functools.cache
def compiler_id() -> str:
    """The compiler, its flags and the instruction set that it compiles for: part of every cache key.

    Raises:
        CompilerMissing: see `build_module`.
    """
    return "\n".join([_compiler().version, *_command(), f"{platform.machine()} {' '.join(sorted(_cpu_flags()))}"])


# ---- machine ----


@functools.cache
def _cpu_flags() -> frozenset[str]:
    """Instruction-set extensions, as Linux names them; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _l2_bytes() -> int:
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(text.rstrip("KM")) << (20 if text.endswith("M") else 10)
    except (OSError, ValueError):
        return 1 << 19


# ---- compiler ----


@dataclass(frozen=True, slots=True)
class _Compiler:
    command: tuple[str, ...]
    version: str

    @property
    def is_gcc(self) -> bool:
        return "clang" not in self.version


@functools.cache
def _compiler() -> _Compiler:
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise CompilerMissing("Python's C headers are not installed", hint="install python3-dev (python3-devel)")
    named = os.environ.get("CXX")
    for command in [named] if named else ["g++", "clang++"]:
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            shown = subprocess.run([*words, "--version"], capture_output=True, text=True, check=False)
            if shown.returncode == 0:
                return _Compiler(tuple(words), shown.stdout.splitlines()[0])
    raise CompilerMissing(
        f"no C++ compiler: {named or 'g++ and clang++'} not found", hint="install g++, or set CXX to a compiler"
    )


@functools.cache
def _command() -> tuple[str, ...]:
    """The command line but for the files."""
    compiler = _compiler()
    flags = [*_FLAGS, "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"]
    if cpu_target().vector_bytes == 64:
        flags.append("-mprefer-vector-width=512")
    if compiler.is_gcc:
        # Threading turns two clamps in a row into a maze that vectorises badly.
        flags.append("-fno-thread-jumps")
        if _has_libmvec():
            flags.append("-DOPTPASS_LIBMVEC")
    if sys.platform == "darwin":
        flags += ["-Xclang", "-fopenmp", "-undefined", "dynamic_lookup"]
    else:
        flags.append("-fopenmp")
    return (*compiler.command, *flags, f"-I{_HEADERS}", f"-I{sysconfig.get_paths()['include']}")


def _libraries() -> list[str]:
    """What to link, in order. PyTorch's own OpenMP runtime comes first, so that its threads and ours are one pool."""
    folder = Path(torch.__file__).parent / "lib"
    runtime = sorted([*folder.glob("libgomp*.so*"), *folder.glob("libomp*.dylib")])
    lazy = [] if sys.platform == "darwin" else ["-Wl,--as-needed"]
    vector = ["-lmvec"] if "-DOPTPASS_LIBMVEC" in _command() else []
    return [*lazy, *map(str, runtime[:1]), *vector, "-lm"]


def _has_libmvec() -> bool:
    """Whether the C library has vector variants of all functions that kernels call."""
    name, version = platform.libc_ver()
    numbers = version.split(".")[:2]
    return (
        platform.machine() == "x86_64"
        and name == "glibc"
        and all(n.isdigit() for n in numbers)
        and tuple(map(int, numbers)) >= (2, 35)
    )


def _compile(source: ModuleSource, folder: Path) -> None:
    """Writes ``module.cpp`` and ``module.so``; parts of the source compile in parallel."""
    (folder / "module.cpp").write_text(source.text)
    if source.parts == 1:
        _run([*_command(), "-shared", "module.cpp", "-o", "module.so", *_libraries()], source, folder)
        return
    objects = [f"part{k}.o" for k in range(source.parts)]
    commands = [[*_command(), "-c", f"-DPART={k}", "module.cpp", "-o", out] for k, out in enumerate(objects)]
    with ThreadPoolExecutor(cpu_target().units) as pool:
        for _ in pool.map(lambda c: _run(c, source, folder), commands):
            pass
    _run([*_command(), "-shared", *objects, "-o", "module.so", *_libraries()], source, folder)
    for name in objects:
        (folder / name).unlink()


def _run(command: list[str], source: ModuleSource, folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode != 0:
        raise CompileError(f"{command[0]} failed with status {done.returncode}", source=source.text, log=done.stderr)


def _load(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, str(path), loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
