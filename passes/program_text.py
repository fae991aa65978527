"""A graph as a Python program that a person can read and that runs by itself."""

from __future__ import annotations

import builtins
import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from optpass.passes.base import source_line
from optpass.torch_private import HigherOrderOperator, OpOverload, optimization_hint

__all__ = ["program_text"]

SMALL_CONSTANT = 16
"""Constants of up to so many elements are written out; larger ones are replaced by random numbers."""

_HEAD = '''\
def on(device):
    """The recorded device, or the CPU where this machine lacks it."""
    kind = torch.device(device).type
    present = kind == "cpu" or getattr(torch, kind).is_available()
    return torch.device(device if present else "cpu")


def tensor(seed, shape, stride, dtype, device):
    """Random numbers in the recorded shape and strides; integers are 0 and 1, so that they can index anything."""
    generator = torch.Generator().manual_seed(seed)
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if all(shape) else 0
    if dtype.is_floating_point or dtype.is_complex:
        flat = torch.randn(extent, generator=generator).to(dtype)
    else:
        flat = torch.randint(0, 2, (extent,), generator=generator).to(dtype)
    return flat.to(on(device)).as_strided(shape, stride)


def show(value):
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)} strides {list(value.stride())} on {value.device}"
    return repr(value)
'''

_TAIL = """\
if __name__ == "__main__":
    torch.manual_seed(0)
    with torch.no_grad():
        outputs = graph(*inputs())
    for place, output in enumerate(outputs if isinstance(outputs, (list, tuple)) else [outputs]):
        print(f"output {place}: {show(output)}")
"""


def program_text(gm: GraphModule, title: str) -> str:
    """The graph as a function `graph` with the user's source lines as comments, inputs of the recorded shapes, and a
    main part that runs it and prints its outputs' metadata. Sub-graphs become functions of their own."""
    return _Program(gm).text(title)


class _Program:
    def __init__(self, gm: GraphModule) -> None:
        self._gm = gm
        self._modules = {"torch"}
        self._globals: list[str] = []
        self._names: dict[tuple[GraphModule, str], str] = {}

    def text(self, title: str) -> str:
        graph = "\n".join(self._function("graph", self._gm))
        inputs = "\n".join(self._inputs(self._gm.graph))
        parts = [
            f'"""{title}"""',
            "\n".join(f"import {module}" for module in sorted(self._modules)),
            _HEAD.rstrip(),
            *self._globals,
            graph,
            inputs,
            _TAIL,
        ]
        return "\n\n\n".join(parts).replace("\n\n\n\n", "\n\n\n")

    def _function(self, name: str, gm: GraphModule) -> Iterator[str]:
        names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
        yield f"def {name}({', '.join(names)}):"
        source = ""
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                yield f"    return {self._expression(node.args[0])}"
                continue
            if (line := source_line(node)) and line != source:
                source = line
                yield f"    # {line}"
            yield f"    {node.name} = {self._call(node, gm)}{_described(node)}"

    def _call(self, node: Node, gm: GraphModule) -> str:
        if node.op == "get_attr":
            return self._attribute(str(node.target), gm)
        arguments = [self._expression(argument) for argument in node.args]
        arguments += [f"{name}={self._expression(value)}" for name, value in node.kwargs.items()]
        if node.op == "call_method":
            return f"{arguments[0]}.{node.target}({', '.join(arguments[1:])})"
        function = self._attribute(str(node.target), gm) if node.op == "call_module" else self._qualified(node.target)
        return f"{function}({', '.join(arguments)})"

    def _attribute(self, path: str, gm: GraphModule) -> str:
        """The global name of a sub-graph or a constant, which is defined on first use."""
        value: Any = gm
        for part in path.split("."):
            value = getattr(value, part)
        if (owner := (gm, path)) in self._names:
            return self._names[owner]
        # A prefix, because a local variable of the same name would hide it.
        name = ("subgraph_" if isinstance(value, GraphModule) else "constant_") + path.strip("_").replace(".", "_")
        while name in self._names.values():
            name += "_"
        self._names[owner] = name
        if isinstance(value, GraphModule):
            definition = "\n".join(self._function(name, value))
        elif isinstance(value, torch.Tensor):
            definition = f"{name} = {_constant(value, seed=1000 + len(self._names))}"
        else:
            definition = f"{name} = None  # a {type(value).__name__}, which has no text"
        self._globals.append(definition)
        return name

    def _inputs(self, graph: Graph) -> Iterator[str]:
        yield "def inputs():"
        yield "    return ["
        for seed, node in enumerate(node for node in graph.nodes if node.op == "placeholder"):
            yield f"        {_recipe(node.meta.get('val'), seed)},  # {node.name}"
        yield "    ]"

    def _qualified(self, target: Any) -> str:
        if isinstance(target, OpOverload):
            if target.namespace not in ("aten", "prims", "prim"):
                self._modules.add("optpass")
            return f"torch.ops.{target}"
        if isinstance(target, HigherOrderOperator):
            return f"torch.ops.higher_order.{target.name()}"
        module = {"_operator": "operator"}.get(target.__module__, str(target.__module__))
        if getattr(builtins, target.__name__, None) is target:
            return target.__name__
        if inspect.getmodule(target) is not None or module in ("math", "operator"):
            self._modules.add(module)
        return f"{module}.{target.__qualname__}"

    def _expression(self, value: Any) -> str:
        if isinstance(value, Node):
            return value.name
        if isinstance(value, (list, tuple)):
            items = ", ".join(map(self._expression, value))
            return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(value) == 1 else ''})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self._expression(v)}" for k, v in value.items()) + "}"
        if isinstance(value, slice):
            return f"slice({', '.join(map(self._expression, (value.start, value.stop, value.step)))})"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if isinstance(value, torch.device):
            return f'on("{value}")'
        if isinstance(value, (OpOverload, HigherOrderOperator)):
            return self._qualified(value)
        return repr(value)


def _recipe(value: Any, seed: int) -> str:
    """An expression for an input like `value`."""
    if isinstance(value, torch.Tensor):
        shape, stride = ([optimization_hint(n, 2) for n in numbers] for numbers in (value.shape, value.stride()))
        return f'tensor({seed}, {shape}, {stride}, {value.dtype}, "{value.device}")'
    if isinstance(value, torch.SymInt):
        return str(optimization_hint(value, 2))
    if isinstance(value, torch.Generator):
        return f'torch.Generator(on("{value.device}"))'
    return repr(value) if value is None or isinstance(value, (int, float, bool, str)) else "None"


def _constant(value: torch.Tensor, seed: int) -> str:
    if type(value) is torch.Tensor and value.numel() <= SMALL_CONSTANT:
        numbers = str(value.tolist()).replace("nan", 'float("nan")').replace("inf", 'float("inf")')
        return f'torch.tensor({numbers}, dtype={value.dtype}, device=on("{value.device}"))'
    return _recipe(value, seed)


def _described(node: Node) -> str:
    value = node.meta.get("val")
    return f"  # {value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
