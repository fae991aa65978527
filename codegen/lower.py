"""From a fused FX region to a kernel: every output is pulled, index by index, through the region's nodes.

`lower` evaluates each stored node at its place in the kernel's domain and asks its arguments for their value at the
index that they are read at. Views, slices, cat, pad, gather and broadcasting are index maps or masked loads, never
copies; equal values are shared by the builder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch
from torch.fx import GraphModule, Node

from optpass.codegen import views
from optpass.codegen.dims import Dim, linear
from optpass.codegen.emit import Emitter, widened
from optpass.codegen.expr import Expr, Symbol, is_axis, is_value
from optpass.codegen.ir import Axis, Buffer, Compute, Index, Kernel, Load, Scalar, Store, live
from optpass.codegen.meta import dtype_of, is_tensor, scalar_expr, shape_of, strides_of
from optpass.codegen.pointwise import RULES
from optpass.codegen.simplify import expressions, merge_axes
from optpass.errors import UnsupportedOp

Dims = Sequence[Dim]


@dataclass(frozen=True)
class Domain:
    """Where a region's values lie in its kernel's iteration space; fusion decides it, lowering obeys it.

    Attributes:
        rows, cols: the axes.
        places: for each stored node, and for the input of each reduction, its index in terms of the axes, by node name.
        on_chip: whether a row's data stay on chip between two passes over it.
    """

    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    places: Mapping[str, Dims]
    on_chip: bool


@dataclass(frozen=True)
class Lowered:
    """A kernel and what to call it with.

    Attributes:
        inputs: positions of the region's placeholders whose tensors are the kernel's first buffers, in order.
        scalars: positions of the placeholders passed by value, in the order of ``kernel.scalars``.
        outputs: the region's output nodes, in the order of the kernel's written buffers.
    """

    kernel: Kernel
    inputs: tuple[int, ...]
    scalars: tuple[int, ...]
    outputs: tuple[Node, ...]


StructuralRule = Callable[["Lowering", Node, Dims], int]
ReductionRule = Callable[["Lowering", Node, Dims, int], int]

#: Operators that are neither pointwise nor views, by overload; filled by `structural` and `reductions`.
STRUCTURAL: dict[object, StructuralRule] = {}
REDUCTIONS: dict[object, ReductionRule] = {}

aten, prims = torch.ops.aten, torch.ops.prims
#: Operators that only convert or copy values.
CASTS = frozenset(
    {aten._to_copy.default, aten.clone.default, prims.convert_element_type.default, aten.contiguous.default,
     aten.lift_fresh_copy.default}
)  # fmt: skip


def lower(region: GraphModule, domain: Domain, name: str, *, eager_rounding: bool = False) -> Lowered:
    """The kernel of a region.

    Args:
        region: placeholders, functional ATen nodes, and one output node (a node or a tuple of nodes).
        domain: the kernel's axes and the place of every stored node.
        name: the kernel's name.
        eager_rounding: keep every rounding point of eager execution.

    Raises:
        UnsupportedOp: some node cannot be expressed; the caller splits the region or leaves it to ATen.
    """
    return Lowering(region, domain, eager_rounding).run(name)


class Lowering:
    """State of one lowering; structural and reduction rules call `value`, `load` and the emitter ``e``."""

    def __init__(self, region: GraphModule, domain: Domain, eager_rounding: bool) -> None:
        self.domain = domain
        self.mask: int | None = None
        self.placeholders = [n for n in region.graph.nodes if n.op == "placeholder"]
        (output,) = (n for n in region.graph.nodes if n.op == "output")
        result = output.args[0]
        self.outputs: tuple[Node, ...] = tuple(result) if isinstance(result, list | tuple) else (result,)
        self.e = Emitter(eager_rounding, self.outputs[0].meta["val"].device.type)
        self.memo: dict[tuple, int] = {}
        self.used: list[Node] = []
        self.scalars: list[Node] = []

    def run(self, name: str) -> Lowered:
        written = []
        for number, node in enumerate(self.outputs):
            place = self.domain.places[node.name]
            digits = [expr for dim in place for expr, _ in dim]
            if len(digits) != len(set(digits)):
                raise UnsupportedOp(f"{node.name} lies on one axis in two dimensions")
            value = self.value(node, place)
            self.e.builder.origin = node.name
            buffer = Buffer(f"out{number}", dtype_of(node), written=True)
            index = linear(place, strides_of(node.meta["val"]))
            self.e.builder.emit(Store(buffer.name, index, value))
            written.append(buffer)
        body, old = live(self.e.builder.body)
        loaded = {ins.buffer for ins in body if isinstance(ins, Load)}
        inputs = [n for n in self.used if self.buffer_name(n) in loaded]
        scalars = [
            n for n in self.scalars if any(isinstance(i, Scalar) and i.name == self.scalar_name(n) for i in body)
        ]
        kernel = Kernel(
            name=name,
            rows=self.domain.rows,
            cols=self.domain.cols,
            buffers=(*(Buffer(self.buffer_name(n), dtype_of(n)) for n in inputs), *written),
            sizes=(),
            scalars=tuple(Scalar(self.scalar_name(n), _scalar_dtype(n)) for n in scalars),
            body=body,
            origins=tuple(self.e.builder.origins[o] for o in old),
        )
        kernel = merge_axes(kernel)
        kernel = replace(kernel, sizes=size_symbols(kernel))
        number = {n: i for i, n in enumerate(self.placeholders)}
        return Lowered(kernel, tuple(number[n] for n in inputs), tuple(number[n] for n in scalars), self.outputs)

    def buffer_name(self, node: Node) -> str:
        return f"in{self.placeholders.index(node)}"

    def scalar_name(self, node: Node) -> str:
        return f"scalar{self.placeholders.index(node)}"

    def value(self, node: Node, dims: Dims, field: int = 0) -> int:
        """The value (in its widened dtype) of element ``dims`` of a node; ``field`` picks among several results."""
        key = (node, field, tuple(dims), self.mask)
        if key not in self.memo:
            origin, self.e.builder.origin = self.e.builder.origin, node.name
            self.memo[key] = self.compute(node, dims, field)
            self.e.builder.origin = origin
        return self.memo[key]

    def compute(self, node: Node, dims: Dims, field: int) -> int:
        if node.op == "placeholder":
            return self.load(node, linear(dims, strides_of(node.meta["val"])))
        if node.op != "call_function":
            raise UnsupportedOp(f"{node.op} inside a fused region")
        if views.is_view(node):
            source, inner = views.source(node, dims)
            return self.value(source, inner)
        target = node.target
        if target in RULES:
            return self.pointwise(node, dims)
        if target in CASTS:
            return self.cast(node, dims)
        if target in STRUCTURAL:
            return STRUCTURAL[target](self, node, dims)
        if target in REDUCTIONS:
            return REDUCTIONS[target](self, node, dims, field)
        if is_getitem(node):
            return self.value(node.args[0], dims, node.args[1])  # type: ignore[arg-type]
        raise UnsupportedOp(f"no kernel rule for {target}")

    def load(self, node: Node, index: Expr, other: float = 0) -> int:
        """Loads from a region input, under the current mask."""
        if node not in self.used:
            self.used.append(node)
        dtype = dtype_of(node)
        self.e.buffer_dtypes[self.buffer_name(node)] = dtype
        return self.e.builder.emit(Load(self.buffer_name(node), index, widened(dtype), self.mask, other))

    def under(self, mask: int, node: Node, dims: Dims) -> int:
        """A node's value where ``mask`` holds; memory is not touched elsewhere (the value there has no meaning)."""
        outer = self.mask
        self.mask = mask if outer is None else self.e.test("and", outer, mask)
        try:
            return self.value(node, dims)
        finally:
            self.mask = outer

    def scalar(self, argument: object, dtype: torch.dtype) -> int:
        """A Python number, SymInt or scalar node as a value of ``dtype``."""
        if isinstance(argument, bool | int | float):
            return self.e.const(argument, dtype)
        expr = scalar_expr(argument)
        if expr is not None:
            return self.e.cast(self.e.builder.emit(Index(expr)), dtype)
        if isinstance(argument, Node) and argument.op == "placeholder":
            if argument not in self.scalars:
                self.scalars.append(argument)
            return self.e.cast(self.e.builder.emit(Scalar(self.scalar_name(argument), _scalar_dtype(argument))), dtype)
        raise UnsupportedOp(f"scalar argument {argument!r}")

    def pointwise(self, node: Node, dims: Dims) -> int:
        rule, e = RULES[node.target], self.e
        out_dtype = dtype_of(node)
        compare = torch.result_type(*_promotable(node)) if rule.promote == "compare" else None
        names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
        declared = {a.name: a.type for a in node.target._schema.arguments}  # type: ignore[union-attr]
        values: dict[str, object] = {}
        on_cpu = node.meta["val"].device.type == "cpu"
        is_converted = on_cpu and e.eager_rounding and node.target in _CONVERTED_ON_CPU
        for name, arg in [*zip(names, node.args), *node.kwargs.items()]:
            is_number = (
                not is_tensor(arg) and "str" not in str(declared[name]) and name not in ("alpha", "value", "exponent")
            )
            if arg is None or not (is_tensor(arg) or is_number):
                is_rounded = is_converted and isinstance(arg, float)
                values[name] = torch.tensor(arg, dtype=out_dtype).item() if is_rounded else arg
            elif rule.promote == "result":
                values[name] = self.operand(arg, dims, widened(out_dtype))
                if is_converted or (not is_tensor(arg) and node.target in _STORED_BOUNDS):
                    values[name] = e.round(values[name], out_dtype)
            elif rule.promote == "compare":
                operand = self.operand(arg, dims, widened(compare), rounded=True)
                values[name] = e.round(operand, compare)
            elif rule.promote == "bool":
                values[name] = self.operand(arg, dims, torch.bool)
            else:
                bool_first = name in ("condition", "self") and dtype_is_bool(arg)
                values[name] = self.operand(arg, dims, torch.bool if bool_first else widened(out_dtype))
        if node.target is aten.where.self and not dtype_is_bool(node.args[0]):
            raise UnsupportedOp("where with a condition that is not bool")
        ordered = [values.pop(n) for n in names[: len(node.args)]]
        result = rule.emit(e, *ordered, **values)
        result = e.cast(result, widened(out_dtype))
        return e.round(result, out_dtype) if e.eager_rounding else result

    def operand(self, arg: object, dims: Dims, dtype: torch.dtype, rounded: bool = False) -> int:
        """An argument broadcast to ``dims`` and converted; ``rounded`` puts a narrow float on its own grid first."""
        if not is_tensor(arg):
            return self.scalar(arg, dtype)
        value = self.value(arg, views.broadcast(dims, shape_of(arg)))
        if rounded or widened(dtype_of(arg)) != dtype:
            value = self.e.round(value, dtype_of(arg))
        return self.convert(value, dtype)

    def convert(self, value: int, dtype: torch.dtype) -> int:
        return self.e.cast(value, dtype)

    def cast(self, node: Node, dims: Dims) -> int:
        """A conversion that the user or a decomposition wrote: it always rounds, into narrow dtypes and out of them."""
        source: Node = node.args[0]  # type: ignore[assignment]
        value, before, after = self.value(source, dims), dtype_of(source), dtype_of(node)
        if before == after:
            return value
        value = self.convert(self.e.round(value, before), widened(after))
        return self.e.round(value, after)


#: Operators whose Python-number bounds eager converts to the tensor's dtype before use.
_STORED_BOUNDS = frozenset({aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default,
                            aten.threshold_backward.default})  # fmt: skip

#: Operators whose CPU kernels convert numbers and 0-dim tensors to the result's dtype first; others, and all kernels of
#: GPUs, take them in the computing dtype.
_CONVERTED_ON_CPU = frozenset(
    {aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar, aten.rsub.Tensor,
     aten.remainder.Scalar, aten.remainder.Tensor, aten.fmod.Scalar, aten.fmod.Tensor, aten.pow.Tensor_Scalar}
)  # fmt: skip


def dtype_is_bool(node: object) -> bool:
    return is_tensor(node) and dtype_of(node) == torch.bool  # type: ignore[arg-type]


def is_getitem(node: Node) -> bool:
    """Whether the node picks one result of an operator with several."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def size_symbols(kernel: Kernel) -> tuple[Symbol, ...]:
    """The size symbols that a kernel needs, sorted by name."""
    found: set[Symbol] = set()
    exprs = [*expressions(kernel.body), *(a.size for a in kernel.rows + kernel.cols)]
    exprs += [ins.attr[0] for ins in kernel.body if isinstance(ins, Compute) and ins.op == "check_index"]
    for e in exprs:
        found |= {s for s in sympy.sympify(e).free_symbols if not is_axis(s) and not is_value(s)}
    return tuple(sorted(found, key=lambda s: s.name))


def _promotable(node: Node) -> list:
    """Two stand-ins whose `torch.result_type` is ATen's common dtype of the node's operands."""
    operands = [a.meta["val"] if isinstance(a, Node) else a for a in node.args[:2]]
    stand_ins = []
    for o in operands:
        if isinstance(o, torch.Tensor):
            stand_ins.append(torch.empty((1,) * o.dim(), dtype=o.dtype))
        elif isinstance(o, bool | torch.SymBool):
            stand_ins.append(True)
        elif isinstance(o, float | torch.SymFloat):
            stand_ins.append(1.0)
        else:
            stand_ins.append(1)
    return stand_ins if len(stand_ins) == 2 else [stand_ins[0], stand_ins[0]]


def _scalar_dtype(node: Node) -> torch.dtype:
    kind = node.meta["val"]
    if isinstance(kind, bool | torch.SymBool):
        return torch.bool
    return torch.float64 if isinstance(kind, float | torch.SymFloat) else torch.int64
