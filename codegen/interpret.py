"""Runs a kernel with torch operations: the oracle that printers and lowering are checked against.

Every value is a tensor with one dimension per axis (rows, then columns), of size 1 along the axes that it does not vary
along. Nothing here is fast; it follows the number model of `ir.py` to the letter.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

import sympy
import torch
from torch import Tensor

from optpass.codegen.expr import Expr, Symbol, value_symbol
from optpass.codegen.ir import (
    NARROW_FLOATS,
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
    indirect,
)


def run(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    sizes: Mapping[Symbol, int] | None = None,
    scalars: Mapping[str, bool | int | float] | None = None,
) -> None:
    """Executes ``kernel`` and writes its outputs in place.

    Args:
        tensors: a CPU tensor for each buffer name; index 0 of a buffer is the tensor's first element.
        sizes: the value of each size symbol.
        scalars: the value of each scalar parameter.

    Raises:
        IndexError: a ``check_index`` saw an index out of range.
    """
    _Run(kernel, tensors, dict(sizes or {}), dict(scalars or {})).execute()


class _Run:
    def __init__(self, kernel: Kernel, tensors: Mapping[str, Tensor], sizes: dict, scalars: dict) -> None:
        self.kernel, self.scalars = kernel, scalars
        self.memory = {
            name: t.as_strided((t.untyped_storage().size() // t.element_size() - t.storage_offset(),), (1,))
            for name, t in tensors.items()
        }
        axes = kernel.rows + kernel.cols
        self.shape = tuple(int(sympy.sympify(a.size).subs(sizes)) for a in axes)
        self.symbols: dict[Symbol, Tensor | int] = dict(sizes)
        for d, (axis, n) in enumerate(zip(axes, self.shape)):
            view = [1] * len(axes)
            view[d] = n
            self.symbols[axis.symbol] = torch.arange(n).view(view)
        self.col_dims = tuple(range(len(kernel.rows), len(axes)))
        self.values: list = []

    def execute(self) -> None:
        for ins in self.kernel.body:
            self.values.append(self.step(ins))

    def expr(self, e: Expr) -> Tensor:
        env = {**self.symbols, **{value_symbol(k): self.values[k] for k in indirect(e)}}
        return torch.as_tensor(_evaluate(e, env))

    def whole(self, value: Tensor, full: bool) -> Tensor:
        shape = [n if full or d not in self.col_dims else 1 for d, n in enumerate(self.shape)]
        return value.expand(torch.broadcast_shapes(value.shape, shape))

    def step(self, ins: Instruction):
        match ins:
            case Const(value, dtype):
                return torch.tensor(value, dtype=dtype)
            case Scalar(name, dtype):
                return torch.tensor(self.scalars[name], dtype=dtype)
            case Index(expr, dtype):
                return self.expr(expr).to(dtype)
            case Load(buffer, index, dtype, mask, other):
                return self.load(buffer, index, dtype, mask, other)
            case Compute(op, args, dtype, attr):
                return _compute(op, [self.values[a] for a in args], dtype, attr, self)
            case Reduce(op, arg, dtype):
                return _reduce(op, self.whole(self.values[arg], True), self.col_dims, dtype)
            case Part(arg, number, _):
                return self.values[arg][number]
            case Store(buffer, index, value):
                full = self.kernel.is_full[len(self.values)]
                memory = self.memory[buffer]
                place = self.whole(self.expr(index), full)
                data = self.whole(self.values[value], full)
                place, data = torch.broadcast_tensors(place, data)
                memory[place.reshape(-1)] = data.reshape(-1).to(memory.dtype)
                return None

    def load(self, buffer: str, index: Expr, dtype: torch.dtype, mask: int | None, other) -> Tensor:
        place, memory = self.expr(index), self.memory[buffer]
        if mask is None:
            return _gather(memory, place).to(dtype)
        place, keep = torch.broadcast_tensors(place, self.values[mask])
        if memory.numel() == 0:
            return torch.full(place.shape, other, dtype=dtype)
        data = _gather(memory, torch.where(keep, place, 0)).to(dtype)
        return torch.where(keep, data, torch.tensor(other, dtype=dtype))


def _gather(memory: Tensor, place: Tensor) -> Tensor:
    if memory.dtype in NARROW_FLOATS and memory.element_size() == 1:
        return memory.view(torch.uint8)[place].view(memory.dtype)
    return memory[place]


def _evaluate(e: Expr, env: Mapping[Symbol, Tensor | int]):
    """The value of an integer expression; tensors broadcast."""
    if isinstance(e, Symbol):
        return env[e]
    if e.is_Integer:
        return int(e)
    if e.is_Rational:
        return float(e)
    args = [_evaluate(a, env) for a in e.args]
    match e.func.__name__:
        case "Add":
            return sum(args[1:], args[0])
        case "Mul":
            return math.prod(args[1:], start=args[0])
        case "Pow":
            return args[0] ** args[1]
        case "FloorDiv" | "CleanDiv":
            return args[0] // args[1]
        case "Mod" | "PythonMod":
            return args[0] % args[1]
        case "Max" | "Min" as name:
            pick = torch.maximum if name == "Max" else torch.minimum
            out = torch.as_tensor(args[0])
            for a in args[1:]:
                out = pick(out, torch.as_tensor(a))
            return out
        case name:
            raise NotImplementedError(f"index expression {name}: {e}")


_UNARY = {
    op: getattr(torch, op)
    for op in (
        "neg abs sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh "
        "asinh acosh atanh erf erfc floor ceil trunc isnan isinf signbit"
    ).split()
} | {"rint": torch.round, "not": lambda x: ~x}

_BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.true_divide, "fmod": torch.fmod,
    "idiv": lambda a, b: torch.div(a, b, rounding_mode="floor"), "imod": torch.remainder,
    "tdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "pow": torch.pow, "atan2": torch.atan2,
    "copysign": torch.copysign, "maximum": torch.maximum, "minimum": torch.minimum,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "shl": operator.lshift, "shr": operator.rshift,
    "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne,
}  # fmt: skip


def _compute(op: str, args: list[Tensor], dtype: torch.dtype, attr, run: _Run) -> Tensor:
    match op:
        case "where":
            return torch.where(args[0], args[1], args[2]).to(dtype)
        case "cast":
            return args[0].to(dtype)
        case "round":
            return args[0].to(attr).to(dtype)
        case "bitcast":
            return args[0].view(dtype)
        case "rand":
            return philox_uniform(args[0], args[1])
        case "check_index":
            size, wrap, message = attr
            size = run.expr(sympy.sympify(size))
            index = torch.where(args[0] < 0, args[0] + size, args[0]) if wrap else args[0]
            if ((index < 0) | (index >= size)).any():
                raise IndexError(message)
            return index
        case "sub" if args[0].dtype == torch.bool:
            raise TypeError("sub of bools is not defined")
        case _:
            out = (_UNARY[op] if op in _UNARY else _BINARY[op])(*args)
            return out.to(dtype)


def _reduce(op: str, x: Tensor, dims: tuple[int, ...], dtype: torch.dtype):
    flat = x.flatten(dims[0]) if dims else x.unsqueeze(-1)
    shape = [*flat.shape[:-1], *[1] * len(dims)]
    n = flat.shape[-1]
    match op:
        case "sum":
            out = flat.sum(-1, dtype=dtype)
        case "prod":
            out = flat.prod(-1, dtype=dtype)
        case "any" | "all":
            out = getattr(flat, op)(-1)
        case "max" | "min":
            out = getattr(flat, f"a{op}")(-1) if n else torch.zeros(flat.shape[:-1], dtype=dtype)
        case "argmax" | "argmin":
            out = getattr(flat, op)(-1) if n else torch.zeros(flat.shape[:-1], dtype=torch.int64)
        case "welford":
            mean = flat.mean(-1, keepdim=True)
            return (mean.view(shape), ((flat - mean) ** 2).sum(-1).view(shape))
        case _:
            raise NotImplementedError(op)
    return out.to(dtype).view(shape)


def philox_uniform(seed: Tensor, counter: Tensor) -> Tensor:
    """First word of Philox-4x32-10 as a float32 in [0, 1); Salmon et al. 2011, "as easy as 1, 2, 3"."""
    low = 0xFFFFFFFF
    seed, counter = torch.broadcast_tensors(seed, counter)
    k0, k1 = seed & low, (seed >> 32) & low
    c = [counter & low, (counter >> 32) & low, torch.zeros_like(counter), torch.zeros_like(counter)]
    for _ in range(10):
        hi0, lo0 = _mulhilo(0xD2511F53, c[0])
        hi1, lo1 = _mulhilo(0xCD9E8D57, c[2])
        c = [hi1 ^ c[1] ^ k0, lo1, hi0 ^ c[3] ^ k1, lo0]
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return (c[0] >> 8).to(torch.float32) * 2.0**-24


def _mulhilo(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 32x32-bit product, in int64 without overflow."""
    low = 0xFFFF
    p0 = (a & low) * (b & low)
    p1 = (a >> 16) * (b & low)
    p2 = (a & low) * (b >> 16)
    p3 = (a >> 16) * (b >> 16)
    mid = (p0 >> 16) + (p1 & low) + (p2 & low)
    return p3 + (p1 >> 16) + (p2 >> 16) + (mid >> 16), ((mid & low) << 16) | (p0 & low)
