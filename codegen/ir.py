"""The kernel IR: one fused loop nest as straight-line SSA code. It knows no device and no FX.

A kernel iterates over *rows* (kept axes, parallel) and, where it reduces, over *cols* (reduced axes). Its body is a
tuple of instructions; the position of an instruction is its value number, and arguments are earlier value numbers. An
instruction that depends on no column axis is *row-level* (evaluated once a row); the others are *full-level*. A
`Reduce` folds its full-level argument over all column axes and is row-level itself; later full-level instructions may
use it, so softmax or layer norm is one kernel. A printer derives loops, passes over the data and tiles from that.

Number model (every printer and the interpreter obey it):

* values are bool, signed/unsigned integers of their exact width (arithmetic wraps), float32 or float64; 16- and 8-bit
  floats exist in memory only: `Load` widens them to float32, `Store` rounds to nearest even, and the op ``round``
  (attr = the narrow dtype) rounds a float32 value to a narrow dtype's grid and keeps it as float32;
* NaN, infinities and signed zeros behave as IEEE 754 says; no reassociation except inside `Reduce`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from optpass.codegen.expr import Expr, Symbol, is_axis, is_value

NARROW_FLOATS = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    }
)

#: Pointwise operations and their arity. Semantics, where the name does not say it all:
#: - ``div`` true division of floats; ``idiv`` floor division of integers, ``imod`` Python's modulo of integers,
#:   ``tdiv`` truncating division of integers (the divisor is never 0: lowering guarantees it);
#: - ``fmod`` C's fmod for floats, C's % for integers; ``rint`` rounds half to even;
#: - ``maximum``/``minimum`` propagate NaN (integers and bools: plain);
#: - ``and or xor not`` are bitwise on integers and logical on bools; ``shl shr`` shift integers (shr arithmetic);
#: - comparisons give bool; ``where(c, a, b)``; ``isnan``/``isinf``/``signbit`` give bool;
#: - ``cast`` converts numerically to the instruction's dtype (float→int truncates, →bool is != 0, int→int wraps);
#: - ``round`` see the number model; ``rand(seed, counter)`` is the first of Philox-4x32-10's four words as a float32 in
#:   [0, 1) (24 bits), key = seed (int64), counter = low and high word of the int64 counter, then 0, 0;
#: - ``check_index(i)`` with attr (size expression, wrap: bool, message: str): i, or i + size where wrap and i < 0;
#:   outside [0, size) the kernel reports an IndexError where the target can (C++: yes, GPU: device assertion);
#: - ``bitcast`` reinterprets the bits of a value in its own dtype as the instruction's dtype of equal width.
OPS: dict[str, int] = {
    **dict.fromkeys(
        (
            "neg abs sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh "
            "tanh asinh acosh atanh erf erfc floor ceil trunc rint not isnan isinf signbit cast round "
            "check_index bitcast"
        ).split(),
        1,
    ),
    **dict.fromkeys(
        (
            "add sub mul div idiv imod tdiv fmod pow atan2 copysign maximum minimum and or xor shl shr lt "
            "le gt ge eq ne rand"
        ).split(),
        2,
    ),
    "where": 3,
}

#: Reductions. ``any``/``all`` take and give bool; ``max``/``min`` propagate NaN; ``argmax``/``argmin`` give the int64
#: position of the first extremum in row-major order of the column axes (a NaN wins over every number); ``welford``
#: gives a pair read by `Part`: field 0 the mean, field 1 the sum of squared deviations from it (float32 or float64).
REDUCE_OPS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "welford")


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop of ``size`` iterations (an int or a size expression) whose index is ``symbol``."""

    symbol: Symbol
    size: Expr


@dataclass(frozen=True, slots=True)
class Buffer:
    """A pointer argument: elements of ``dtype``; ``read``/``written`` say how the body uses it.

    Distinct buffers never overlap, except that an input may be passed twice. The pointer is that of the tensor's first
    element (its storage offset applied), aligned to its element size only.
    """

    name: str
    dtype: torch.dtype
    written: bool = False


@dataclass(frozen=True, slots=True)
class Const:
    value: bool | int | float
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Index:
    """The integer value of an index expression, as int64."""

    expr: Expr
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True, slots=True)
class Scalar:
    """A run-time scalar argument of the kernel (int64, float64 or bool), passed by value."""

    name: str
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Load:
    """``buffer[index]``, widened to ``dtype``. Where ``mask`` is false memory is not touched and ``other`` is given."""

    buffer: str
    index: Expr
    dtype: torch.dtype
    mask: int | None = None
    other: bool | int | float = 0


@dataclass(frozen=True, slots=True)
class Compute:
    op: str
    args: tuple[int, ...]
    dtype: torch.dtype
    attr: object = None


@dataclass(frozen=True, slots=True)
class Reduce:
    op: str
    arg: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Part:
    """Field ``field`` of the pair that a welford `Reduce` gives."""

    arg: int
    field: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Store:
    """``buffer[index] = value``, rounded to the buffer's dtype; a row-level store happens once a row."""

    buffer: str
    index: Expr
    value: int


Instruction = Const | Index | Scalar | Load | Compute | Reduce | Part | Store


def arguments(instruction: Instruction) -> tuple[int, ...]:
    """Value numbers that an instruction reads, indirect indices included."""
    match instruction:
        case Compute(args=args):
            return args
        case Reduce(arg=arg) | Part(arg=arg):
            return (arg,)
        case Load(index=index, mask=mask):
            return indirect(index) + (() if mask is None else (mask,))
        case Store(index=index, value=value):
            return (*indirect(index), value)
        case Index(expr=expr):
            return indirect(expr)
        case _:
            return ()


def indirect(expr: Expr) -> tuple[int, ...]:
    """Value numbers used inside an index expression, ascending."""
    return tuple(sorted(int(s.name[1:]) for s in expr.free_symbols if is_value(s)))


@dataclass(frozen=True)
class Kernel:
    """A fused loop nest.

    Attributes:
        name: identifier of the emitted function.
        rows, cols: iteration axes, outermost first; ``cols`` is empty where nothing is reduced.
        buffers: pointer parameters, in call order (inputs, then outputs).
        sizes: integer parameters (size symbols) in call order, after the buffers.
        scalars: by-value parameters, in call order, after the sizes.
        body: the instructions.
        origins: for each instruction the graph node that it comes from (for people; no meaning to printers).
    """

    name: str
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    buffers: tuple[Buffer, ...]
    sizes: tuple[Symbol, ...]
    scalars: tuple[Scalar, ...]
    body: tuple[Instruction, ...]
    origins: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def axes_of(self) -> tuple[frozenset[Symbol], ...]:
        """For each instruction the axes along which its value varies."""
        cols = {a.symbol for a in self.cols}
        out: list[frozenset[Symbol]] = []
        for ins in self.body:
            axes: set[Symbol] = set()
            for a in arguments(ins):
                axes |= out[a]
            expr = getattr(ins, "index", None) if isinstance(ins, Load | Store) else getattr(ins, "expr", None)
            if expr is not None:
                axes |= {s for s in expr.free_symbols if is_axis(s)}
            out.append(frozenset(axes - cols if isinstance(ins, Reduce) else axes))
        return tuple(out)

    @cached_property
    def is_full(self) -> tuple[bool, ...]:
        """For each instruction whether it is full-level (varies along a column axis)."""
        cols = {a.symbol for a in self.cols}
        return tuple(bool(a & cols) for a in self.axes_of)

    @property
    def reductions(self) -> tuple[int, ...]:
        return tuple(i for i, ins in enumerate(self.body) if isinstance(ins, Reduce))

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    def renamed(self, name: str) -> Kernel:
        return replace(self, name=name)

    def __str__(self) -> str:
        return "\n".join(_text(self))


def short(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def _text(kernel: Kernel) -> Iterator[str]:
    axes = lambda group: ", ".join(f"{a.symbol}<{a.size}" for a in group)
    params = [f"{b.name}: {'*' if b.written else 'const *'}{short(b.dtype)}" for b in kernel.buffers]
    params += [str(s) for s in kernel.sizes] + [f"{s.name}: {short(s.dtype)}" for s in kernel.scalars]
    yield f"kernel {kernel.name}({', '.join(params)})"
    yield f"  rows [{axes(kernel.rows)}]  cols [{axes(kernel.cols)}]"
    for i, ins in enumerate(kernel.body):
        level = "full" if kernel.is_full[i] else "row "
        match ins:
            case Const(value, _):
                text = f"const {value}"
            case Index(expr, _):
                text = f"index {expr}"
            case Scalar(name, _):
                text = f"scalar {name}"
            case Load(buffer, index, _, mask, other):
                text = f"load {buffer}[{index}]" + ("" if mask is None else f" if v{mask} else {other}")
            case Compute(op, args, _, attr):
                note = "" if attr is None else f" {short(attr) if isinstance(attr, torch.dtype) else attr}"
                text = f"{op}{note} " + " ".join(f"v{a}" for a in args)
            case Reduce(op, arg, _):
                text = f"reduce.{op} v{arg}"
            case Part(arg, number, _):
                text = f"part v{arg}.{number}"
            case Store(buffer, index, value):
                yield f"  {level}        store {buffer}[{index}] = v{value}"
                continue
        yield f"  {level}  v{i}: {short(ins.dtype)} = {text}"


class Builder:
    """Builds a body with common subexpressions shared; `value` numbers are stable."""

    def __init__(self) -> None:
        self.body: list[Instruction] = []
        self.origins: list[str] = []
        self.origin = ""
        self._seen: dict[Instruction, int] = {}

    def emit(self, instruction: Instruction) -> int:
        """Appends an instruction, or returns the number of an equal earlier one. Stores are never shared."""
        # -0.0 == 0.0, True == 1 == 1.0 and nan != nan in Python: the key spells constants out.
        key = (instruction, repr(instruction))
        if not isinstance(instruction, Store) and key in self._seen:
            return self._seen[key]
        self.body.append(instruction)
        self.origins.append(self.origin)
        self._seen[key] = len(self.body) - 1
        return len(self.body) - 1

    def dtype(self, value: int) -> torch.dtype:
        return self.body[value].dtype  # type: ignore[union-attr]


def live(body: Sequence[Instruction]) -> tuple[tuple[Instruction, ...], tuple[int, ...]]:
    """Drops instructions that no store needs; gives the renumbered body and, for each, its old number."""
    needed: set[int] = set()
    for i in range(len(body) - 1, -1, -1):
        if isinstance(body[i], Store) or i in needed:
            needed.add(i)
            needed.update(arguments(body[i]))
    old = tuple(sorted(needed))
    new = {o: n for n, o in enumerate(old)}
    return tuple(renumber(body[o], new) for o in old), old


def renumber(ins: Instruction, new: dict[int, int]) -> Instruction:
    """The same instruction with its arguments renumbered."""
    from optpass.codegen.expr import value_symbol

    move = lambda e: e.xreplace({value_symbol(a): value_symbol(new[a]) for a in indirect(e)})
    match ins:
        case Compute(args=args):
            return replace(ins, args=tuple(new[a] for a in args))
        case Reduce(arg=arg) | Part(arg=arg):
            return replace(ins, arg=new[arg])
        case Load(index=index, mask=mask):
            return replace(ins, index=move(index), mask=None if mask is None else new[mask])
        case Store(index=index, value=value):
            return replace(ins, index=move(index), value=new[value])
        case Index(expr=expr):
            return replace(ins, expr=move(expr))
        case _:
            return ins
