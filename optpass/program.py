"""The final graph as straight-line Python: one line per library call or kernel launch, values freed when last used.

The text is what runs and what a dump shows. It refers to operators by name, so it can be kept on disk; a graph that
holds live objects (sub-graphs of higher-order operators, tensor constants) still runs, but is not kept.
"""

from __future__ import annotations

import math
import operator
import re
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import sympy
import torch
from torch.fx import GraphModule, Node

from optpass.backends.host_memory import KEPT_BYTES
from optpass.codegen.expr import Expr, Symbol
from optpass.codegen.ir import Kernel, Scalar
from optpass.codegen.lower import Lowered, is_getitem
from optpass.codegen.meta import is_tensor, shape_of, strides_of, to_expr
from optpass.codegen.segment import Call, Scratch, Segment
from optpass.codegen.views import is_view, viewed
from optpass.errors import UnsupportedOp
from optpass.passes.accounting import tensor_bytes, total_cost
from optpass.passes.effects import has_effect, is_random
from optpass.passes.fusion.candidates import has_doubtful_strides
from optpass.passes.fusion.fuse_regions import LOWERED
from optpass.report import KernelRecord
from optpass.torch_private import HigherOrderOperator, OpOverload, python_text, storage_id

aten = torch.ops.aten

#: Key of a graph module's metadata: how many leading outputs the user sees; later ones are saved for the backward pass.
USER_OUTPUTS = "optpass_user_outputs"


@dataclass(frozen=True)
class Program:
    """A graph ready to run.

    Attributes:
        text: a module with one function, ``call(args: list) -> tuple``; it empties the list (boxed convention).
        objects: live objects that the text refers to; a program with any is not kept on disk.
        kernels: the distinct kernels, named ``k0_…``.
        segments: entry points of the kernels, on a target that calls them in runs; empty on others.
        records: for the report, each call of a kernel: what was fused into it and the memory traffic that saved.
    """

    text: str
    objects: dict[str, object]
    kernels: tuple[Kernel, ...]
    segments: tuple[Segment, ...]
    records: tuple[KernelRecord, ...]


#: Operators whose Python binding takes the same arguments with less overhead than the operator object.
_BINDINGS = {aten.mm.default: "torch.mm", aten.bmm.default: "torch.bmm", aten.addmm.default: "torch.addmm",
             aten.baddbmm.default: "torch.baddbmm"}  # fmt: skip


@dataclass
class _Line:
    """One statement; ``defines`` is the value that it makes, and a ``pure`` one goes if nobody uses that."""

    text: str
    defines: str | None = None
    pure: bool = False


@dataclass
class _FusedCall:
    """One call of a fused module: its kernel, the arguments bound to its buffers, the nodes of its results."""

    node: Node
    lowered: Lowered
    kernel: str
    inputs: list[Node]
    scalars: list[Node]
    results: list[tuple[Node | None, object]]


def build_program(
    gm: GraphModule, *, segmented: bool, compiled: bool, refused: frozenset[Kernel] = frozenset()
) -> Program:
    """Turns a graph after the fusion stage into a program.

    Args:
        gm: functional ATen nodes, ``fused_k`` calls that carry their kernels, trailing writes into inputs;
            ``gm.meta[USER_OUTPUTS]`` counts the leading outputs that the user sees (by default all).
        segmented: gather consecutive kernels into one entry point (the CPU), instead of one launch each.
        compiled: False runs each ``fused_k`` module through ATen instead of its kernel (``execution="reference"``).
        refused: kernels (with an empty name) that do not build, so that their modules run through ATen.
    """
    return _Emitter(gm, segmented, compiled, refused).run()


class _Emitter:
    def __init__(self, gm: GraphModule, segmented: bool, compiled: bool, refused: frozenset[Kernel]) -> None:
        self.gm, self.segmented, self.compiled, self.refused = gm, segmented, compiled, refused
        self.lines: list[_Line] = []
        self.objects: dict[str, object] = {}
        self.aliases: dict[str, str] = {}
        self.kernels: dict[Kernel, Kernel] = {}
        self.segments: list[Segment] = []
        self.symbols: dict[Symbol, str] = {}
        self.pending: list[_FusedCall] = []
        self.fused: dict[Node, _FusedCall] = {}

    def run(self) -> Program:
        placeholders = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        for node in placeholders:
            self._bind_symbols(node)
        plan = self._plan()
        for item in plan:
            if isinstance(item, list):
                self._emit_fused(item)
            else:
                self._emit_node(item)
        records = tuple(self._record(c) for c in self.fused.values())
        text = self._text(placeholders)
        return Program(text, self.objects, tuple(self.kernels.values()), tuple(self.segments), records)

    def _record(self, call: _FusedCall) -> KernelRecord:
        region = self.gm.get_submodule(call.node.target)  # type: ignore[arg-type]
        inside = [n for n in region.graph.nodes if n.op == "call_function"]
        apart = total_cost(inside)
        moved = sum(tensor_bytes(n.meta["val"]) for n in {*call.inputs})
        moved += sum(tensor_bytes(value) for _, value in call.results)
        return KernelRecord(call.kernel, tuple(n.name for n in inside), moved, apart.flops, apart.bytes)

    # --- order: runs of fused calls between library calls -----------------------------------------------------------

    def _plan(self) -> list[Node | list[_FusedCall]]:
        """Nodes in order; consecutive fused calls gathered where no library call needs or disturbs their results."""
        plan: list[Node | list[_FusedCall]] = []
        run: list[_FusedCall] = []
        late: set[Node] = set()  # results that exist in memory only after the run

        def flush() -> None:
            if run:
                plan.append(list(run))
                run.clear()
                late.clear()
                plan.extend(waiting)
                waiting.clear()

        waiting: list[Node] = []
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                continue
            if self._has_kernel(node):
                if any(w in waiting for w in node.all_input_nodes):
                    flush()
                call = self._fused_call(node)
                self.fused[node] = call
                if run and not self.segmented:
                    flush()
                run.append(call)
                late.add(node)
            elif is_getitem(node) and node.args[0] in self.fused:
                if node.args[0] in late:
                    late.add(node)
            elif late.intersection(node.all_input_nodes) and _is_pure_view(node):
                waiting.append(node)
                late.add(node)
            else:
                if late.intersection(node.all_input_nodes) or has_effect(node) or is_random(node):
                    flush()
                plan.append(node)
        return plan

    def _has_kernel(self, node: Node) -> bool:
        if not self.compiled or node.op != "call_module":
            return False
        lowered: Lowered | None = self.gm.get_submodule(node.target).meta.get(LOWERED)  # type: ignore[arg-type]
        return lowered is not None and lowered.kernel.renamed("") not in self.refused

    def _fused_call(self, node: Node) -> _FusedCall:
        lowered: Lowered = self.gm.get_submodule(node.target).meta[LOWERED]  # type: ignore[arg-type]
        kernel = self._shared(lowered.kernel)
        picks: dict[int, Node] = {u.args[1]: u for u in node.users if is_getitem(u)}  # type: ignore[misc]
        results = [(picks.get(k), value) for k, value in enumerate(node.meta["val"])]
        inputs = [node.args[i] for i in lowered.inputs]
        return _FusedCall(node, lowered, kernel, inputs, [node.args[i] for i in lowered.scalars], results)  # type: ignore[arg-type]

    def _shared(self, kernel: Kernel) -> str:
        """The name of a kernel; identical kernels share one."""
        key = kernel.renamed("")
        if key not in self.kernels:
            self.kernels[key] = kernel.renamed(f"k{len(self.kernels)}_{_hint(kernel)}")
        return self.kernels[key].name

    # --- lines ------------------------------------------------------------------------------------------------------

    def _emit_fused(self, run: list[_FusedCall]) -> None:
        scratch = self._scratch(run) if self.segmented else set()
        for call in run:
            for pick, value in call.results:
                if pick not in scratch and pick is not None:
                    self._define(pick.name, self._allocation(value), pure=True)
        if self.segmented:
            self._emit_segment(run, scratch)
            return
        for call in run:
            tensors = [n.name for n in call.inputs] + [self._result(call, k) for k in range(len(call.results))]
            self._launch(f"launch_{call.kernel}", tensors, self._kernel(call).sizes, call.scalars)

    def _emit_segment(self, run: list[_FusedCall], scratch: set[Node]) -> None:
        name = f"segment{len(self.segments)}"
        tensors: dict[str, None] = {}
        sizes: dict[Symbol, None] = {}
        scalars: dict[Node, None] = {}
        calls, spaces = [], []
        for call in run:
            buffers = [n.name for n in call.inputs] + [self._result(call, k) for k in range(len(call.results))]
            for n in buffers:
                if n not in {s.name for s in scratch}:
                    tensors.setdefault(n)
            for s in self._kernel(call).sizes:
                sizes.setdefault(s)
            for n in call.scalars:
                scalars.setdefault(n)
            calls.append(Call(call.kernel, tuple(buffers), tuple(n.name for n in call.scalars)))
        for node in sorted(scratch, key=lambda n: n.name):
            value = node.meta["val"]
            spaces.append(Scratch(node.name, sympy.Mul(*shape_of(node)) * value.element_size()))
        kinds = {n: _scalar_of(call, n) for call in run for n in call.scalars}
        segment = Segment(
            name, tuple(tensors), tuple(sizes), tuple(kinds[n] for n in scalars), tuple(spaces), tuple(calls)
        )
        if spaces:
            _, total = segment.place_scratch()
            self._define(segment.memory, f"empty_kept(({self._expr_text(total)},), (1,), torch.uint8)", pure=True)
        self.segments.append(segment)
        self._launch(name, segment.tensors, tuple(sizes), list(scalars))

    def _launch(self, name: str, tensors: Sequence[str], sizes: Sequence[Symbol], scalars: Sequence[Node]) -> None:
        arguments = [*tensors, *(self._symbol(s) for s in sizes), *(n.name for n in scalars)]
        self._line(f"{name}({', '.join(arguments)})")

    def _scratch(self, run: list[_FusedCall]) -> set[Node]:
        """Results that only kernels of the same run read, as they are."""
        inside = {c.node for c in run}
        out = set()
        for call in run:
            for pick, _ in call.results:
                if pick is not None and pick.users and all(u in inside for u in pick.users):
                    out.add(pick)
        return out

    def _result(self, call: _FusedCall, k: int) -> str:
        pick, _ = call.results[k]
        if pick is None:
            raise UnsupportedOp(f"result {k} of {call.node.name} is stored but read by no one")
        return pick.name

    def _kernel(self, call: _FusedCall) -> Kernel:
        return call.lowered.kernel

    def _allocation(self, value: torch.Tensor) -> str:
        shape, strides = self._ints(value.shape), self._ints(value.stride())
        if value.device.type == "cpu":
            size = value.numel() * value.element_size()
            maker = "empty_strided_cpu" if isinstance(size, int) and size < KEPT_BYTES else "empty_kept"
            return f"{maker}({shape}, {strides}, {value.dtype})"
        if value.device.type == "cuda":
            return f"empty_strided_cuda({shape}, {strides}, {value.dtype})"
        return f"empty_strided({shape}, {strides}, dtype={value.dtype}, device={self._value(value.device)})"

    def _ints(self, values: Iterable) -> str:
        parts = [self._expr_text(to_expr(v)) for v in values]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    def _expr_text(self, e: Expr) -> str:
        return python_text(e.xreplace({s: sympy.Symbol(self._symbol(s), integer=True) for s in e.free_symbols}))

    def _bind_symbols(self, node: Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            e = to_expr(value)
            if e.is_Symbol:
                self.symbols.setdefault(e, node.name)  # type: ignore[arg-type]
        elif isinstance(value, torch.Tensor):
            for d, s in enumerate(value.shape):
                if isinstance(s, torch.SymInt) and to_expr(s).is_Symbol and to_expr(s) not in self.symbols:
                    name = f"size_{node.name}_{d}"
                    self._define(name, f"{node.name}.size({d})", pure=True)
                    self.symbols[to_expr(s)] = name  # type: ignore[index]

    def _symbol(self, s: Symbol) -> str:
        if s not in self.symbols:
            raise UnsupportedOp(f"size {s} is known to no input of the graph")
        return self.symbols[s]

    def _emit_node(self, node: Node) -> None:
        if node.op == "output":
            result = node.args[0]
            self._line(f"return {self._value(result)}")
            return
        if node.op == "get_attr":
            self.objects[f"attr_{node.name}"] = operator.attrgetter(node.target)(self.gm)  # type: ignore[arg-type]
            self._define(node.name, f"attr_{node.name}", pure=True)
        elif self._view(node):
            pass
        elif is_getitem(node):
            self._define(node.name, f"{self._value(node.args[0])}[{self._value(node.args[1])}]", pure=True)
        elif node.op == "call_module":
            self.objects[f"module_{node.target}"] = self.gm.get_submodule(node.target)  # type: ignore[arg-type]
            self._define(node.name, f"module_{node.target}({self._arguments(node)})")
        elif node.op == "call_function":
            pure = not has_effect(node) and not is_random(node)
            self._define(node.name, f"{self._function(node.target)}({self._arguments(node)})", pure=pure)
        else:
            raise UnsupportedOp(f"a {node.op} node in the final graph")
        self._bind_symbols(node)
        self._hold_strides(node)

    def _view(self, node: Node) -> bool:
        """Emits a view as a new header over its base's memory; False where it must be an operator call.

        Unlike a view operator, the header has no tie to its base in autograd's eyes, so callers may write to an output
        that was a view of an intermediate; and it costs a third of an operator call.
        """
        value, base = node.meta.get("val"), self._base(node)
        if base is None or not isinstance(value, torch.Tensor):
            return False
        offset = to_expr(value.storage_offset()) - to_expr(base.meta["val"].storage_offset())
        known = {s for e in [*shape_of(node), *strides_of(value), offset] for s in e.free_symbols}
        if not known <= self.symbols.keys():
            return False
        place = f"{base.name}, {self._ints(value.shape)}, {self._ints(value.stride())}, {self._expr_text(offset)}"
        self._define(node.name, f"reinterpret({place})", pure=True)
        return True

    def _base(self, node: Node) -> Node | None:
        """The tensor whose memory a chain of plain strided views shows; None if the node is no such view."""
        if not _is_pure_view(node) and not (is_view(node) and is_getitem(node)):
            return None
        source = viewed(node)
        while is_view(source) and source.target is not aten.reshape.default:
            source = viewed(source)
        if has_doubtful_strides(source):
            return None
        a, b = node.meta.get("val"), source.meta.get("val")
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or storage_id(a) != storage_id(b):
            return None
        plain = (
            a.dtype == b.dtype
            and a.layout == torch.strided
            and not (a.is_conj() or a.is_neg() or b.is_conj() or b.is_neg())
        )
        return source if plain and type(b).__name__ == "FakeTensor" else None

    def _hold_strides(self, node: Node) -> None:
        """Makes a library result have the strides that were traced, where kernels or headers address memory by them.

        Operators now and then choose another memory format than their fake counterpart predicts. What only library
        operators read, or the user gets, stays as the operator made it: that is what eager gives.
        """
        value = node.meta.get("val")
        if node.op != "call_function" or node.target in _BINDINGS or not isinstance(value, torch.Tensor):
            return
        if value.layout != torch.strided or value.dim() == 0 or is_view(node) or not self._is_addressed(node):
            return
        known = {s for e in strides_of(value) for s in e.free_symbols} <= self.symbols.keys()
        if not known or has_doubtful_strides(node):
            return
        strides = self._ints(value.stride())
        self._line(f"if {node.name}.stride() != {strides}: {node.name} = restride({node.name}, {strides})")

    def _is_addressed(self, node: Node) -> bool:
        """Whether code of ours, here or in the backward graph, relies on the node's traced strides."""
        for user in node.users:
            if user in self.fused or is_view(user):
                return True
            if user.op == "output":
                visible = self.gm.meta.get(USER_OUTPUTS, len(user.args[0]))  # type: ignore[arg-type]
                if node in user.args[0][visible:]:  # type: ignore[index]
                    return True
        return False

    def _arguments(self, node: Node) -> str:
        parts = [self._value(a) for a in node.args] + [f"{k}={self._value(v)}" for k, v in node.kwargs.items()]
        return ", ".join(parts)

    def _function(self, target: Callable) -> str:
        if target in _BINDINGS:
            return _BINDINGS[target]
        if isinstance(target, OpOverload):
            return self._alias(f"torch.ops.{target}")
        if isinstance(target, HigherOrderOperator):
            return self._alias(f"torch.ops.higher_order.{target.name()}")
        name, module = getattr(target, "__name__", ""), getattr(target, "__module__", "")
        if isinstance(target, types.BuiltinFunctionType) and getattr(operator, name, None) is target:
            return f"operator.{name}"
        if getattr(math, name, None) is target:
            return f"math.{name}"
        if module == "torch" and getattr(torch, name, None) is target:
            return f"torch.{name}"
        return self._object(target)

    def _alias(self, dotted: str) -> str:
        """A module-level short name for an operator, so that a call costs no attribute look-ups."""
        return self.aliases.setdefault(
            dotted, "op_" + dotted.removeprefix("torch.ops.").replace(".", "_").replace("::", "_")
        )

    def _object(self, value: object) -> str:
        name = f"object_{len(self.objects)}"
        self.objects[name] = value
        return name

    def _value(self, value: object) -> str:
        match value:
            case Node():
                return value.name
            case tuple():
                return f"({', '.join(map(self._value, value))}{',' if len(value) == 1 else ''})"
            case list():
                return f"[{', '.join(map(self._value, value))}]"
            case dict():
                return "{" + ", ".join(f"{k!r}: {self._value(v)}" for k, v in value.items()) + "}"
            case slice():
                return f"slice({self._value(value.start)}, {self._value(value.stop)}, {self._value(value.step)})"
            case bool() | int() | str() | None | complex():
                return repr(value)
            case float():
                return repr(value) if math.isfinite(value) else f'float("{value}")'
            case torch.dtype() | torch.layout() | torch.memory_format():
                return str(value)
            case torch.device():
                return f"torch.device({str(value)!r})"
            case OpOverload() | HigherOrderOperator():
                return self._function(value)
            case _:
                return self._object(value)

    def _line(self, text: str) -> None:
        self.lines.append(_Line(text))

    def _define(self, name: str, text: str, pure: bool = False) -> None:
        self.lines.append(_Line(f"{name} = {text}", name, pure))

    def _text(self, placeholders: list[Node]) -> str:
        """The module's text, with each value deleted after the last line that uses it."""
        names = [p.name for p in placeholders]
        lines = self._needed()
        last: dict[str, int] = dict.fromkeys(names, -1)
        for i, line in enumerate(lines):
            if line.defines:
                last[line.defines] = i
            last.update(dict.fromkeys(_identifiers(line.text) & last.keys(), i))
        dead: dict[int, list[str]] = {}
        for name, i in last.items():
            dead.setdefault(i, []).append(name)
        body = "\n".join(line.text for line in lines)
        out = ["import math", "import operator", "", "import torch", ""]
        out += [f"{short} = {dotted}" for dotted, short in self.aliases.items() if short in body]
        out += ["", "", "def call(args):"]
        if names:
            out.append(f"    {', '.join(names)}{',' if len(names) == 1 else ''} = args")
        out.append("    args.clear()")
        if dead.get(-1):
            out.append(f"    del {', '.join(dead[-1])}")
        for i, line in enumerate(lines):
            out.append(f"    {line.text}")
            if dead.get(i) and not line.text.startswith("return"):
                out.append(f"    del {', '.join(dead[i])}")
        return "\n".join(out) + "\n"

    def _needed(self) -> list[_Line]:
        """The lines without pure ones that nobody uses."""
        used: set[str] = set()
        kept = []
        for line in reversed(self.lines):
            if line.pure and line.defines not in used:
                continue
            kept.append(line)
            used |= _identifiers(line.text.removeprefix(f"{line.defines} = "))
        return kept[::-1]


def _identifiers(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _is_pure_view(node: Node) -> bool:
    """A view that never copies: it may be taken of memory that is not filled yet."""
    return is_view(node) and not is_getitem(node) and node.target is not aten.reshape.default and is_tensor(node)


def _scalar_of(call: _FusedCall, node: Node) -> Scalar:
    """A scalar argument as a parameter of the segment, under its node's name."""
    return Scalar(node.name, call.lowered.kernel.scalars[call.scalars.index(node)].dtype)


def _hint(kernel: Kernel) -> str:
    """A few telling operations for a kernel's name."""
    seen: dict[str, None] = {}
    for ins in kernel.body:
        name = getattr(ins, "op", None)
        if name in (
            "sum",
            "max",
            "min",
            "argmax",
            "argmin",
            "prod",
            "any",
            "all",
            "welford",
            "exp",
            "erf",
            "tanh",
            "rsqrt",
            "rand",
        ):
            seen.setdefault(name)
    return "_".join(list(seen)[:4]) or ("reduce" if kernel.cols else "pointwise")
