"""Kernel IR to Triton: one `@triton.jit` function of blocks, and how to launch it.

A program computes one `Tile` of the kernel. A value becomes a block that spans the tile dimensions (``y``, ``x``) along
which it varies, of extent 1 along the other, or a scalar where it varies along neither. A tile that is looped walks the
columns once for each level of reductions that depend on each other; what an earlier pass loaded and computed, a later
one loads and computes again.

The text imports only `triton_helpers`; nothing here imports Triton.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import sympy
import torch

from optpass.codegen.expr import Expr, floor_div, is_axis
from optpass.codegen.ir import (
    NARROW_FLOATS,
    Axis,
    Compute,
    Const,
    Index,
    Instruction,
    Kernel,
    Load,
    Part,
    Reduce,
    Scalar,
    Store,
    arguments,
    indirect,
)
from optpass.codegen.printers import triton_ops as ops
from optpass.codegen.printers.base import ExprPrinter, Writer
from optpass.codegen.target import Target
from optpass.codegen.tiles import Tile, numel
from optpass.errors import UnsupportedOp


@dataclass(frozen=True, slots=True)
class TritonSource:
    """A printed kernel and its launch.

    Attributes:
        name: the function's name.
        text: the module that defines it.
        signature: for each parameter in order its name and Triton type (``*bf16``, ``i32``, ``constexpr``).
        constants: values of the ``constexpr`` parameters, which come last.
        programs: size of the one-dimensional grid, an expression of size symbols; 0 where there is nothing to do.
        num_warps: warps of a program.
        checks: whether the text holds device assertions, which only a debug build keeps.
    """

    name: str
    text: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...]
    programs: Expr
    num_warps: int
    checks: bool


def emit(kernel: Kernel, tile: Tile, target: Target) -> TritonSource:
    """Prints an arranged kernel.

    Raises:
        UnsupportedOp: the target, or Triton, lacks a dtype or an operation that the kernel needs.
    """
    for b in kernel.buffers:
        if b.dtype in target.unsupported or b.dtype not in ops.POINTEES:
            raise UnsupportedOp(f"{target.arch} kernels cannot access {b.dtype} in memory", where=kernel.name)
    return _Printer(kernel, tile).run()


class _Indices(ExprPrinter):
    div, mod = "//", "%"
    max, min = "tl.maximum", "tl.minimum"


class _Printer:
    def __init__(self, kernel: Kernel, tile: Tile) -> None:
        self.kernel, self.tile, self.body = kernel, tile, kernel.body
        self.expr = _Indices()
        self.write = Writer()
        self.full = frozenset("yx" if tile.y else "x" if tile.x else "")
        self.dim_of = {a.symbol: d for d in "yx" for a in getattr(tile, d)}
        #: Tile dimensions along which each value varies.
        self.dims: list[frozenset[str]] = []
        for ins in self.body:
            self.dims.append(self.dims_of(ins))
        self.guards: dict[str, str] = {}

    def run(self) -> TritonSource:
        kernel, tile = self.kernel, self.tile
        parameters = [(f"{b.name}_ptr", f"*{ops.POINTEES[b.dtype]}") for b in kernel.buffers]
        parameters += [(s.name, f"i{tile.index_bits}") for s in kernel.sizes]
        parameters += [(f"{s.name}_arg", ops.POINTEES[s.dtype]) for s in kernel.scalars]
        blocks = {"y": ("YBLOCK", tile.y_block), "x": ("XBLOCK", tile.x_block)}
        constants = [blocks[d] for d in "yx" if d in self.full]
        names = [n for n, _ in parameters] + [f"{n}: tl.constexpr" for n, _ in constants]
        self.write("@triton.jit")
        with self.write.block(f"def {kernel.name}({', '.join(names)}):"):
            self.program()
            self.constants()
            self.looped() if tile.looped else self.straight()
        text = self.write.text()
        return TritonSource(
            name=kernel.name,
            text=ops.imports(text) + text,
            signature=(*parameters, *((n, "constexpr") for n, _ in constants)),
            constants=tuple(constants),
            programs=sympy.Mul(*(count for _, count in self.grid)),
            num_warps=tile.num_warps,
            checks=any(isinstance(i, Compute) and i.op == "check_index" for i in self.body),
        )

    # -- the iteration space --

    @cached_property
    def grid(self) -> list[tuple[Axis | str, Expr]]:
        """What the program number counts, fastest first: blocks of a dimension, or an outer axis."""
        out: list[tuple[Axis | str, Expr]] = []
        for d in "xy":
            if d in self.full and not (d == "x" and self.kernel.cols):
                block = getattr(self.tile, f"{d}_block")
                out.append((d, floor_div(numel(getattr(self.tile, d)) + block - 1, sympy.Integer(block))))
        return out + [(a, sympy.sympify(a.size)) for a in reversed(self.tile.outer)]

    def program(self) -> None:
        """Prints the indices that a program starts from."""
        pid = "tl.program_id(0)" + self.wide
        if len(self.grid) > 1:
            self.write(f"pid = {pid}")
            pid = "pid"
        for number, (what, count) in enumerate(self.grid):
            is_last = number == len(self.grid) - 1
            index = pid if is_last else f"pid % {self.expr.atom(count)}"
            if isinstance(what, Axis):
                self.write(f"{what.symbol} = {index}")
            else:
                self.dimension(what, f"{index} * {what.upper()}BLOCK")
            if not is_last:
                self.write(f"pid = pid // {self.expr.atom(count)}")
        if self.kernel.cols and not self.tile.looped:
            self.dimension("x", "")

    def dimension(self, d: str, start: str) -> None:
        """Prints the indices of a block that begins at ``start``, and the mask of those that exist."""
        axes: tuple[Axis, ...] = getattr(self.tile, d)
        name = str(axes[0].symbol) if len(axes) == 1 else d
        spread = "" if len(self.full) == 1 else "[:, None]" if d == "y" else "[None, :]"
        block = f"tl.arange(0, {d.upper()}BLOCK){spread}{self.wide}"
        self.write(f"{name} = {start} + {block}" if start else f"{name} = {block}")
        size = numel(axes)
        if not (size.is_Integer and size > 0 and size % getattr(self.tile, f"{d}_block") == 0):
            self.guards[d] = f"{d}_in"
            self.write(f"{d}_in = {name} < {self.expr(size)}")
        if len(axes) > 1:
            below = size
            for number, axis in enumerate(axes):
                below = sympy.cancel(below / axis.size)
                digit = name if below == 1 else f"{name} // {self.expr.atom(below)}"
                self.write(f"{axis.symbol} = {digit}" + (f" % {self.expr.atom(axis.size)}" if number else ""))

    @property
    def wide(self) -> str:
        return ".to(tl.int64)" if self.tile.index_bits == 64 else ""

    def dims_of(self, ins: Instruction) -> frozenset[str]:
        out = set().union(*(self.dims[a] for a in arguments(ins)))
        expr = getattr(ins, "index", getattr(ins, "expr", None))
        if expr is not None:
            out |= {self.dim_of[s] for s in expr.free_symbols if s in self.dim_of}
        return self.full - {"x"} if isinstance(ins, Reduce) else frozenset(out)

    def shape(self, dims: frozenset[str]) -> str:
        if len(self.full) == 1:
            return "[XBLOCK]"
        return f"[{', '.join(f'{d.upper()}BLOCK' if d in dims else '1' for d in 'yx')}]"

    # -- order of the instructions --

    def straight(self) -> None:
        """Whole rows in one block, or no columns: the body as it stands."""
        for k, ins in enumerate(self.body):
            self.reduce(k, ins) if isinstance(ins, Reduce) else self.instruction(k)

    def looped(self) -> None:
        """Passes over the columns. Row-level stores come last: a later pass may still read the memory."""
        is_full, stage = self.kernel.is_full, self.stages
        row_level = [k for k, f in enumerate(is_full) if not f and not isinstance(self.body[k], Store | Reduce)]
        for number in range(max(stage) + 1):
            for k in row_level:
                if stage[k] == number:
                    self.instruction(k)
            ends = [k for k, ins in enumerate(self.body) if stage[k] == number and self.ends_pass(k)]
            if ends:
                self.column_pass(ends)
        for k, ins in enumerate(self.body):
            if isinstance(ins, Store) and not is_full[k]:
                self.instruction(k)

    def ends_pass(self, k: int) -> bool:
        return isinstance(self.body[k], Reduce) or (isinstance(self.body[k], Store) and self.kernel.is_full[k])

    @cached_property
    def stages(self) -> list[int]:
        """For each instruction the pass over the columns in which it is (first) computed."""
        out: list[int] = []
        for ins in self.body:
            out.append(max((out[a] + isinstance(self.body[a], Reduce) for a in arguments(ins)), default=0))
        # A store to memory that is also read waits for the last pass: earlier ones may be followed by loads.
        loaded = {ins.buffer for ins in self.body if isinstance(ins, Load)}
        return [max(out) if isinstance(i, Store) and i.buffer in loaded else s for i, s in zip(self.body, out)]

    def column_pass(self, ends: list[int]) -> None:
        needed = set(ends)
        for k in range(max(ends), -1, -1):
            if k in needed:
                needed |= {a for a in arguments(self.body[k]) if self.kernel.is_full[a]}
        folds = [k for k in ends if isinstance(self.body[k], Reduce)]
        for k in folds:
            self.write(f"{', '.join(self.accumulators(k))} = {', '.join(self.initial(k))}")
        with self.write.block(f"for start in range(0, {self.expr(numel(self.kernel.cols))}, XBLOCK):"):
            self.dimension("x", "start")
            for k in sorted(needed):
                self.accumulate(k) if k in folds else self.instruction(k)
        for k in folds:
            self.finish(k)

    # -- instructions --

    def constants(self) -> None:
        """Prints the constants that some use needs as a value of their dtype rather than as a literal."""
        typed = {a for ins in self.body for a in arguments(ins) if self.is_const(a) and not self.inlines(ins, a)}
        for k in sorted(typed):
            self.write(f"v{k} = {ops.constant(self.body[k].value, self.body[k].dtype)}")

    def is_const(self, k: int) -> bool:
        return isinstance(self.body[k], Const)

    def inlines(self, ins: Instruction, k: int) -> bool:
        """Whether constant ``k`` may stand as a literal in ``ins``: its dtype follows from the other operand."""
        if not isinstance(ins, Compute) or not ops.is_plain(self.body[k].value, self.body[k].dtype):
            return False
        values = ins.args[1:] if ins.op == "where" else ins.args if ins.op in ops.INFIX else ()
        return k in values and not all(self.is_const(a) for a in values)

    def name(self, k: int) -> str:
        ins = self.body[k]
        return f"{('mean', 'deviations')[ins.field]}{ins.arg}" if isinstance(ins, Part) else f"v{k}"

    def instruction(self, k: int) -> None:
        match self.body[k]:
            case Const() | Part():
                return
            case Scalar(name, dtype):
                text = f"{name}_arg.to({ops.tl_type(dtype)})"
            case Index(expr, dtype):
                text = f"{self.expr.atom(expr)}.to({ops.tl_type(dtype)})"
                if expr.is_Integer:
                    text = f"tl.full([], {expr}, {ops.tl_type(dtype)})"
            case Load():
                text = self.load(k)
            case Compute(op="check_index"):
                return self.check_index(k)
            case Compute() as ins:
                values = [
                    ops.literal(self.body[a].value, self.body[a].dtype)
                    if self.is_const(a) and self.inlines(ins, a)
                    else self.name(a)
                    for a in ins.args
                ]
                text = ops.compute(ins, values, [self.body[a].dtype for a in ins.args])
            case Store():
                return self.store(k)
        self.write(f"v{k} = {text}")

    def load(self, k: int) -> str:
        ins = self.body[k]
        own = self.dims_in(ins.index)
        wanted = own if ins.mask is None else own | self.dims[ins.mask]
        mask = self.masked(wanted, [] if ins.mask is None else [self.name(ins.mask)])
        pointer = self.pointer(ins.buffer, ins.index, own, wanted)
        text = f"tl.load({pointer}, {mask})" if mask else f"tl.load({pointer})"
        if self.kernel.buffer(ins.buffer).dtype != ins.dtype:
            text += f".to({ops.tl_type(ins.dtype)})"
        # `other` is a number of the wide dtype, which memory's dtype may not hold: select after the load.
        return text if ins.mask is None else f"tl.where(v{ins.mask}, {text}, {ops.literal(ins.other, ins.dtype)})"

    def store(self, k: int) -> None:
        ins = self.body[k]
        wanted = self.full if self.kernel.is_full[k] or not self.kernel.cols else self.full - {"x"}
        pointer = self.pointer(ins.buffer, ins.index, self.dims_in(ins.index), wanted)
        mask = self.masked(wanted, [])
        dtype = self.kernel.buffer(ins.buffer).dtype
        value = self.name(ins.value)
        if dtype in NARROW_FLOATS:
            value = ops.narrow(value, dtype)
        self.write(f"tl.store({pointer}, {value}, {mask})" if mask else f"tl.store({pointer}, {value})")

    def check_index(self, k: int) -> None:
        ins = self.body[k]
        size, wrap, message = ins.attr
        index, size = self.name(ins.args[0]), self.expr(sympy.sympify(size))
        self.write(f"v{k} = {f'wrap_index({index}, {size})' if wrap else index}")
        mask = self.masked(self.dims[k], [])
        inside = f"(v{k} >= 0) & (v{k} < {size})"
        self.write(f"tl.device_assert({inside}, {message!r}{f', mask={mask}' if mask else ''})")

    def dims_in(self, expr: Expr) -> frozenset[str]:
        own = {self.dim_of[s] for s in expr.free_symbols if is_axis(s) and s in self.dim_of}
        return frozenset(own).union(*(self.dims[a] for a in indirect(expr)))

    def pointer(self, buffer: str, index: Expr, own: frozenset[str], wanted: frozenset[str]) -> str:
        offset = self.expr.atom(index)
        if own != wanted:
            offset = f"({offset} + tl.zeros({self.shape(wanted)}, tl.int32))"
        return f"{buffer}_ptr" if offset == "0" else f"{buffer}_ptr + {offset}"

    def masked(self, dims: frozenset[str], others: Iterable[str]) -> str:
        return " & ".join([self.guards[d] for d in "yx" if d in dims and d in self.guards] + list(others))

    # -- reductions --

    def lanes(self, k: int) -> str:
        """The argument of a reduction as a whole block; lanes without a column hold what changes nothing."""
        ins = self.body[k]
        text, dims = self.name(ins.arg), self.dims[ins.arg]
        if (dtype := self.folded_dtype(k)) != self.body[ins.arg].dtype:
            text += f".to({ops.tl_type(dtype)})"
        if dims != self.full:
            text = f"tl.broadcast_to({text}, {self.shape(self.full)})"
        return self.guarded(text, ops.literal(ops.identity(ins.op, dtype), dtype))

    def guarded(self, text: str, other: str) -> str:
        return f"tl.where({self.guards['x']}, {text}, {other})" if "x" in self.guards else text

    def positions(self) -> str:
        axes = self.tile.x
        text = f"tl.broadcast_to({axes[0].symbol if len(axes) == 1 else 'x'}, {self.shape(self.full)})"
        return self.guarded(text, str(2 ** (self.tile.index_bits - 1) - 1))

    def folded_dtype(self, k: int) -> torch.dtype:
        """The dtype in which a reduction compares or accumulates."""
        ins = self.body[k]
        if not ins.op.startswith("arg"):
            return ins.dtype
        dtype = self.body[ins.arg].dtype
        return torch.int32 if dtype == torch.bool else dtype

    def fold(self, op: str, text: str, dtype: torch.dtype) -> str:
        """The text of a fold over the columns of blocks."""
        axis = "1, keep_dims=True" if len(self.full) == 2 else "0"
        if op == "sum" and dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
            return f"tl.sum({text}, {axis})"
        axis, *keep = axis.split(", ")
        return f"tl.reduce({', '.join([text, axis, ops.combine(op, dtype), *keep])})"

    def reduce(self, k: int, ins: Reduce) -> None:
        dtype = self.folded_dtype(k)
        if ins.op == "welford":
            width = numel(self.kernel.cols)
            value = self.name(ins.arg)
            if self.dims[ins.arg] != self.full:
                value = f"tl.broadcast_to({value}, {self.shape(self.full)})"
            self.write(f"mean{k} = {ops.divide(self.fold('sum', self.lanes(k), dtype), f'{float(width)}', dtype)}")
            self.write(f"deviation{k} = {self.guarded(f'{value} - mean{k}', '0.0')}")
            self.write(f"deviations{k} = {self.fold('sum', f'deviation{k} * deviation{k}', dtype)}")
        elif ins.op.startswith("arg"):
            self.write(f"_, at{k} = {self.fold(ins.op, f'({self.lanes(k)}, {self.positions()})', dtype)}")
            self.write(f"v{k} = at{k}.to(tl.int64)")
        else:
            self.write(f"v{k} = {self.fold(ins.op, self.lanes(k), dtype)}")

    def accumulators(self, k: int) -> list[str]:
        op = self.body[k].op
        if op == "welford":
            return [f"mean{k}", f"deviations{k}", f"count{k}"]
        return [f"best{k}", f"at{k}"] if op.startswith("arg") else [f"sum{k}" if op == "sum" else f"fold{k}"]

    def initial(self, k: int) -> list[str]:
        op, dtype = self.body[k].op, self.folded_dtype(k)
        fill = lambda value, type_: f"tl.full({self.shape(self.full)}, {value}, {type_})"
        start = fill(ops.literal(ops.identity(op, dtype), dtype), ops.tl_type(dtype))
        if op == "welford":
            return [start] * 3
        bits = self.tile.index_bits
        return [start, fill(2 ** (bits - 1) - 1, f"tl.int{bits}")] if op.startswith("arg") else [start]

    def accumulate(self, k: int) -> None:
        op, names, dtype = self.body[k].op, self.accumulators(k), self.folded_dtype(k)
        new = [self.lanes(k)]
        if op == "welford":
            new += ["0.0", self.guarded("1.0", "0.0")]
        elif op.startswith("arg"):
            new.append(self.positions())
        if op == "sum":
            self.write(f"{names[0]} += {new[0]}")
        else:
            self.write(f"{', '.join(names)} = {ops.combine(op, dtype)}({', '.join(names + new)})")

    def finish(self, k: int) -> None:
        op, names, dtype = self.body[k].op, self.accumulators(k), self.folded_dtype(k)
        several = ", ".join(names)
        if op == "welford":
            self.write(f"{several} = {self.fold(op, f'({several})', dtype)}")
            self.write(f"mean{k} = tl.where(count{k} == 0, float('nan'), mean{k})")
        elif op.startswith("arg"):
            self.write(f"{several} = {self.fold(op, f'({several})', dtype)}")
            self.write(f"v{k} = at{k}.to(tl.int64)")
        else:
            self.write(f"v{k} = {self.fold(op, names[0], dtype)}")
