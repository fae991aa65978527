"""A graph's kernels and segments as the source of one Python extension module."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from optpass.codegen.ir import Kernel, Scalar
from optpass.codegen.loops import schedule
from optpass.codegen.printers.base import ExprPrinter, Writer
from optpass.codegen.printers.cpp import CppPrinter
from optpass.codegen.segment import Segment
from optpass.codegen.target import Target

#: Status of a kernel call: 0 fine, 1 out of memory, from here on a failed index check.
_FIRST_CHECK = 2

_READERS = {torch.bool: "read_bool", torch.int64: "read_int", torch.float64: "read_double"}


#: Name of every generated module; modules differ by the file that they are loaded from.
MODULE = "optpass_kernels"


#: Kernels compiled together.
_PART = 4


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """A module's text. With ``-DPART=k``, k from 0 below ``parts``, the compiler sees a part of it only, so that parts
    compile in parallel; without, it sees all."""

    text: str
    parts: int


def module_source(kernels: Sequence[Kernel], segments: Sequence[Segment], target: Target) -> ModuleSource:
    """A C++ file that defines module `MODULE` with one function per segment.

    Raises:
        UnsupportedOp: a kernel holds something that C++ kernels cannot express.
    """
    write = Writer()
    for header in ("cpp_runtime.h", "cpp_math.h"):
        write(f'#include "{header}"')
    write()
    messages: list[str] = []
    printers = []
    for kernel in kernels:
        printers.append(CppPrinter(schedule(kernel, target), _FIRST_CHECK + len(messages)))
        messages += printers[-1].messages
        write(f"{printers[-1].prototype};")
    groups = [printers[i : i + _PART] for i in range(0, len(printers), _PART)]
    for number, group in enumerate(groups):
        _open_part(write, number)
        for printer in group:
            write()
            for line in (*_comment(printer.kernel, kernels), *printer.text().splitlines()):
                write(line)
        write("#endif")
    _open_part(write, max(len(groups) - 1, 0))
    write('#include "cpp_python.h"')
    write()
    with write.block("static const char* const messages[] = {", "};"):
        for message in [*messages, ""]:
            write(json.dumps(message) + ",")
    known = {k.name: k for k in kernels}
    for segment in segments:
        write()
        _entry(write, segment, known)
    _module(write, segments)
    write("#endif")
    return ModuleSource(write.text(), max(len(groups), 1))


def _open_part(write: Writer, number: int) -> None:
    write()
    write(f"#if !defined(PART) || PART == {number}")


def _comment(scheduled: Kernel, kernels: Sequence[Kernel]) -> Iterator[str]:
    """The kernel as it was given, for people."""
    for line in str(next(k for k in kernels if k.name == scheduled.name)).splitlines():
        yield f"// {line}"


def _entry(write: Writer, segment: Segment, kernels: dict[str, Kernel]) -> None:
    index = ExprPrinter()
    buffers, sizes, scalars = segment.tensors, segment.sizes, segment.scalars
    count = len(buffers) + len(sizes) + len(scalars)
    head = f"static PyObject* entry_{segment.name}(PyObject*, PyObject* const* args, Py_ssize_t count)"
    with write.block(f"{head} {{", "}"):
        write(f'if (!check_count("{segment.name}", {count}, count)) return NULL;')
        readers = [(f"void* {b};", f"read_pointer(args[{i}], &{b})") for i, b in enumerate(buffers)]
        readers += [(f"int64_t {s};", f"read_int(args[{i}], &{s})") for i, s in enumerate(sizes, len(buffers))]
        readers += [_scalar(s, i) for i, s in enumerate(scalars, len(buffers) + len(sizes))]
        for declaration, reader in readers:
            write(f"{declaration} if (!{reader}) return NULL;")
        write("int status = 0;")
        write("Py_BEGIN_ALLOW_THREADS")
        with write.block("{", "}"):
            places, _ = segment.place_scratch()
            for call in segment.calls:
                kernel = kernels[call.kernel]
                given = []
                for buffer, name in zip(kernel.buffers, call.buffers):
                    where = f"((char*){segment.memory} + {index(places[name])})" if name in places else name
                    given.append(f"({CppPrinter.memory_type(buffer.dtype)}*){where}")
                given += [str(s) for s in kernel.sizes] + list(call.scalars) + ["&status"]
                write(f"if (status == 0) kernel_{call.kernel}({', '.join(given)});")
        write("Py_END_ALLOW_THREADS")
        write("return finish(status, messages);")


def _scalar(scalar: Scalar, position: int) -> tuple[str, str]:
    name, dtype = scalar.name, scalar.dtype
    return f"{CppPrinter.types[dtype]} {name};", f"{_READERS[dtype]}(args[{position}], &{name})"


def _module(write: Writer, segments: Sequence[Segment]) -> None:
    write()
    with write.block("static PyMethodDef methods[] = {", "};"):
        for s in segments:
            write(f'{{"{s.name}", (PyCFunction)(void*)entry_{s.name}, METH_FASTCALL, NULL}},')
        write("{NULL, NULL, 0, NULL},")
    write()
    write(f'static struct PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "{MODULE}", NULL, -1, methods}};')
    write()
    with write.block(f"PyMODINIT_FUNC PyInit_{MODULE}(void) {{", "}"):
        write('data_ptr_name = PyUnicode_InternFromString("data_ptr");')
        write("return data_ptr_name ? PyModule_Create(&definition) : NULL;")
