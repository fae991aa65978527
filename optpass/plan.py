"""Compiled graphs kept on disk: a later process that meets the same graph skips the passes and the compiler.

An entry holds the program's text, its kernels' shared object and the compile report, all of them text or machine code
that is checksummed by the store; nothing is unpickled. The key is the whole input of the compilation: the graph with
every dtype, shape, stride and device in it, the options, the passes and their sources, the sources of optpass itself,
the versions of PyTorch and Python, the target, the compiler and its flags.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

import optpass as package
from optpass.backends.cache import Store
from optpass.codegen.target import Target
from optpass.options import Options
from optpass.passes.pipeline import fingerprint
from optpass.program import USER_OUTPUTS, Program
from optpass.report import GraphReport
from optpass.torch_private import OpOverload


def graph_key(gm: GraphModule, options: Options, target: Target, compiler: str) -> str | None:
    """The key of a graph's plan; None where the graph holds something that text cannot pin down, or must run afresh.

    Numeric verification, bisection and dumps look at the passes at work, so they never take a plan from disk.
    """
    if options.verify in ("numeric", "strict") or options.bisect_limit is not None or options.dump is not None:
        return None
    text = graph_text(gm.graph)
    if text is None:
        return None
    parts = [text, str(gm.meta.get(USER_OUTPUTS)), options.fingerprint(), fingerprint(options), _own_sources()]
    parts += [torch.__version__, sys.version, target.fingerprint(), compiler, str(torch.get_num_threads())]
    return "\n".join(parts)


class Memo:
    """A fact about a graph of Dynamo's, remembered on disk once `set`, for the same graph, inputs and passes."""

    def __init__(self, fact: str, gm: GraphModule, inputs: Sequence[Any], options: Options) -> None:
        kinds = "; ".join(describe(x) for x in inputs)
        parts = [fact, gm.code, kinds, options.fingerprint(), fingerprint(options), _own_sources(), torch.__version__]
        takes_part = options.cache and options.dump is None and options.bisect_limit is None
        self._key = "\n".join(parts) if takes_part else None
        self._store = Store.default()

    def is_set(self) -> bool:
        return self._key is not None and self._store.find(self._key) is not None

    def set(self) -> None:
        if self._key is not None:
            self._store.get_or_build(self._key, lambda folder: (folder / "fact").write_text("holds"))


def graph_text(graph: Graph) -> str | None:
    """Every node with its arguments and the kind of its value; None for a graph that calls modules or live objects."""
    lines = []
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module", "call_method"):
            return None
        if node.op == "call_function" and not isinstance(node.target, OpOverload) and not _is_plain(node.target):
            return None
        if not all(_is_textual(a) for a in _leaves(node)):
            return None
        value = node.meta.get("val")
        lines.append(f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {describe(value)}")
    return "\n".join(lines)


def describe(value: Any) -> str:
    """The dtype, shape, strides, offset and device of a fake value, or the expression of a symbolic number."""
    if isinstance(value, list | tuple):
        return f"({', '.join(map(describe, value))})"
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value}"
    layout = f"{tuple(value.stride())} {value.storage_offset()}" if value.layout == torch.strided else str(value.layout)
    return f"{type(value).__name__} {value.dtype} {tuple(value.shape)} {layout} {value.device} {value.requires_grad}"


def write_plan(folder: Path, program: Program, report: GraphReport) -> None:
    """Leaves a program and its report in a folder, beside the kernels."""
    (folder / "program.py").write_text(program.text)
    (folder / "plan.json").write_text(json.dumps({"segments": [s.name for s in program.segments],
                                                  "report": report.to_dict()}))  # fmt: skip


def read_plan(folder: Path) -> tuple[str, list[str], dict[str, Any]]:
    """The program's text, the names of its entry points and the stored report."""
    plan = json.loads((folder / "plan.json").read_text())
    return (folder / "program.py").read_text(), plan["segments"], plan["report"]


def _leaves(node: Node) -> Iterator[Any]:
    stack: list[Any] = [*node.args, *node.kwargs.values()]
    while stack:
        item = stack.pop()
        if isinstance(item, list | tuple):
            stack += item
        elif isinstance(item, dict):
            stack += item.values()
        elif not isinstance(item, Node):
            yield item


_TEXTUAL = (bool, int, float, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _is_textual(value: Any) -> bool:
    return isinstance(value, _TEXTUAL)


def _is_plain(target: Any) -> bool:
    """A function of Python's own `operator` or `math`, or of torch's symbolic arithmetic: its name says all."""
    return getattr(target, "__module__", "") in ("_operator", "operator", "math", "torch")


@functools.cache
def _own_sources() -> str:
    """A hash of optpass's own sources: code that changed makes other plans."""
    digest = hashlib.sha256()
    roots = [Path(package.__file__).parent]
    for name in ("passes", "codegen", "backends", "autotune"):
        module = __import__(f"optpass.{name}", fromlist=["__path__"])
        roots.append(Path(module.__path__[0]))
    for root in roots:
        for path in sorted(root.rglob("*.py")) + sorted(root.rglob("*.h")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
