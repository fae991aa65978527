"""A typed front of `ir.Builder`: arithmetic on value numbers with the casts and roundings that ATen asks for."""

from __future__ import annotations

import math
import struct

import torch

from optpass.codegen.expr import Expr
from optpass.codegen.ir import NARROW_FLOATS, Builder, Compute, Const, Index, Load, Reduce
from optpass.errors import UnsupportedOp

#: Dtypes that kernels compute with or hold in memory; every other dtype (complex, quantised, uint16…) stays with ATen.
SUPPORTED = NARROW_FLOATS | {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64,
}  # fmt: skip


def widened(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of ``dtype`` are computed: float32 for narrow floats, else itself.

    Raises:
        UnsupportedOp: kernels do not know the dtype.
    """
    if dtype not in SUPPORTED:
        raise UnsupportedOp(f"kernels do not compute with {dtype}")
    return torch.float32 if dtype in NARROW_FLOATS else dtype


class Emitter:
    """Emits instructions into a builder.

    Args:
        eager_rounding: round after every operation whose result is a narrow float, as eager does (``parity="eager"``).
        device: PyTorch's device type that runs the kernel; in a few corner cases ATen's answer depends on it.
    """

    def __init__(self, eager_rounding: bool = False, device: str = "cpu") -> None:
        self.builder = Builder()
        self.eager_rounding = eager_rounding
        self.device = device
        self.buffer_dtypes: dict[str, torch.dtype] = {}

    def dtype(self, value: int) -> torch.dtype:
        return self.builder.dtype(value)

    def const(self, value: bool | int | float, dtype: torch.dtype) -> int:
        """A constant in ``dtype``.

        Raises:
            UnsupportedOp: the number does not fit the dtype; ATen decides between wrapping and an error.
        """
        if dtype == torch.bool:
            return self.builder.emit(Const(bool(value), dtype))
        if dtype.is_floating_point:
            number = float(value)
            if dtype == torch.float32 and math.isfinite(number):
                try:
                    number = struct.unpack("<f", struct.pack("<f", number))[0]
                except OverflowError:
                    raise UnsupportedOp(f"the number {value} does not fit {dtype}") from None
            return self.builder.emit(Const(number, dtype))
        if isinstance(value, float) and not value.is_integer():
            raise UnsupportedOp(f"the number {value} does not fit {dtype}")
        info = torch.iinfo(dtype)
        if not info.min <= value <= info.max:
            raise UnsupportedOp(f"the number {value} does not fit {dtype}")
        return self.builder.emit(Const(int(value), dtype))

    def index(self, expr: Expr, dtype: torch.dtype = torch.int64) -> int:
        return self.cast(self.builder.emit(Index(expr)), dtype)

    def op(self, name: str, *args: int, dtype: torch.dtype | None = None, attr: object = None) -> int:
        """An operation on values of one dtype; the result has ``dtype``, else that of the last argument."""
        return self.builder.emit(Compute(name, args, dtype or self.dtype(args[-1]), attr))

    def test(self, name: str, *args: int) -> int:
        """A comparison or predicate: gives bool."""
        return self.op(name, *args, dtype=torch.bool)

    def cast(self, value: int, dtype: torch.dtype) -> int:
        """Numeric conversion to a computing dtype; nothing where it already has it."""
        if self.dtype(value) == dtype:
            return value
        ins = self.builder.body[value]
        if isinstance(ins, Const) and math.isfinite(ins.value):
            return self.const(ins.value, dtype) if dtype.is_floating_point else self.op("cast", value, dtype=dtype)
        return self.op("cast", value, dtype=dtype)

    def round(self, value: int, dtype: torch.dtype) -> int:
        """The value on the grid of a narrow dtype; nothing where it is on it already, or where dtype is not narrow."""
        if dtype not in NARROW_FLOATS or self.is_rounded(value, dtype):
            return value
        return self.op("round", value, attr=dtype)

    def is_rounded(self, value: int, dtype: torch.dtype) -> bool:
        match self.builder.body[value]:
            case Compute(op="round", attr=attr):
                return attr == dtype
            case Load(buffer=buffer):
                return self.buffer_dtypes.get(buffer) == dtype
            case Compute(op="neg" | "abs", args=args):
                return self.is_rounded(args[0], dtype)
            case Compute(op="maximum" | "minimum", args=args):
                return all(self.is_rounded(a, dtype) for a in args)
            case Compute(op="where", args=(_, a, b)):
                return self.is_rounded(a, dtype) and self.is_rounded(b, dtype)
            case Reduce(op="max" | "min", arg=arg):
                return self.is_rounded(arg, dtype)
            case Const(value=number):
                return number == 0 or math.isinf(number) or math.isnan(number)
        return False

    # Arithmetic that rules use often; every argument pair has one dtype.
    def add(self, a: int, b: int) -> int:
        return self.op("add", a, b)

    def sub(self, a: int, b: int) -> int:
        return self.op("sub", a, b)

    def mul(self, a: int, b: int) -> int:
        return self.op("mul", a, b)

    def div(self, a: int, b: int) -> int:
        return self.op("div", a, b)

    def where(self, condition: int, a: int, b: int) -> int:
        return self.op("where", condition, a, b)

    def like(self, number: float, value: int) -> int:
        """A constant of the dtype of ``value``."""
        return self.const(number, self.dtype(value))
