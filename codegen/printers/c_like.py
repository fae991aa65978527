"""Expressions and statements of C-like targets: types, literals, casts and the operation table."""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from optpass.codegen.expr import Expr, is_value
from optpass.codegen.ir import NARROW_FLOATS, Compute, Const, Index, Instruction, Kernel, Load, Part, Scalar, short
from optpass.codegen.printers.base import ATOM, ExprPrinter
from optpass.errors import UnsupportedOp

_INFIX = {
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|", "xor": "^",
    "add": "+", "sub": "-", "mul": "*",
}  # fmt: skip

_INTEGER_CALLS = {
    "idiv": "floor_div", "imod": "floor_mod", "tdiv": "trunc_div", "fmod": "trunc_mod", "pow": "pow_int",
    "shl": "shift_left", "shr": "shift_right",
}  # fmt: skip


class CLikePrinter:
    """Prints the instructions of one kernel. Subclasses name the types and the functions of a language."""

    #: Type of a value in registers, for every dtype that a value may have.
    types: ClassVar[dict[torch.dtype, str]] = {
        torch.bool: "bool",
        torch.uint8: "uint8_t", torch.uint16: "uint16_t", torch.uint32: "uint32_t", torch.uint64: "uint64_t",
        torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int32_t", torch.int64: "int64_t",
        torch.float32: "float", torch.float64: "double",
    }  # fmt: skip
    #: Type of an element in memory, where it differs from that.
    memory_types: ClassVar[dict[torch.dtype, str]] = {
        torch.bool: "uint8_t",
        torch.float16: "uint16_t", torch.bfloat16: "uint16_t",
        **{d: "uint8_t" for d in NARROW_FLOATS if d.itemsize == 1},
    }  # fmt: skip
    #: Prefix of the math functions; they are overloaded on float and double.
    math: ClassVar[str] = ""
    infinity: ClassVar[str] = "INFINITY"
    nan: ClassVar[str] = "NAN"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.indices = _Indices(self)

    # ---- names and types ----

    def type(self, value: int) -> str:
        """Type of a value of the kernel."""
        return self.value_type(self.kernel.body[value].dtype)  # type: ignore[union-attr]

    @classmethod
    def value_type(cls, dtype: torch.dtype) -> str:
        if dtype not in cls.types:
            raise UnsupportedOp(f"no values of {short(dtype)} in {cls.__name__}")
        return cls.types[dtype]

    @classmethod
    def memory_type(cls, dtype: torch.dtype) -> str:
        return cls.memory_types.get(dtype) or cls.value_type(dtype)

    def ref(self, value: int) -> str:
        """How an expression names a value: constants and scalar parameters appear in place."""
        match self.kernel.body[value]:
            case Const(constant, dtype):
                return self.literal(constant, dtype)
            case Scalar(name, _):
                return name
            case _:
                return f"v{value}"

    def literal(self, value: bool | int | float, dtype: torch.dtype) -> str:
        if dtype == torch.bool:
            return "true" if value else "false"
        if not dtype.is_floating_point:
            value, width = int(value), dtype.itemsize * 8
            if dtype.is_signed and value == -(2 ** (width - 1)) and width >= 32:
                return f"({self.types[dtype]})(-{2 ** (width - 1) - 1} - 1)"
            text = str(value) if value >= 0 else f"({value})"
            return text if dtype == torch.int32 else f"({self.types[dtype]}){text}"
        suffix = "f" if dtype == torch.float32 else ""
        value = float(value)
        if suffix:
            value = torch.tensor(value, dtype=torch.float32).item()
        sign = "-" if math.copysign(1, value) < 0 else ""
        if math.isnan(value):
            return f"({self.types[dtype]}){self.nan}"
        if math.isinf(value):
            return f"({sign}({self.types[dtype]}){self.infinity})"
        text = self._shortest(abs(value), dtype)
        return f"({sign}{text}{suffix})" if sign else text + suffix

    def _shortest(self, value: float, dtype: torch.dtype) -> str:
        if dtype == torch.float32:
            same = lambda t: torch.tensor(float(t), dtype=dtype).item() == value
            text = next((t for p in range(1, 10) if same(t := f"{value:.{p}g}")), repr(value))
        else:
            text = repr(value)
        return text if any(c in text for c in ".e") else text + ".0"

    # ---- expressions ----

    def index(self, expr: Expr) -> str:
        return self.indices(expr)

    def expression(self, ins: Instruction) -> str:
        """The text of an instruction that gives a value, except `Reduce`."""
        match ins:
            case Const() | Scalar():
                return self.literal(ins.value, ins.dtype) if isinstance(ins, Const) else ins.name
            case Index(expr, dtype):
                return f"({self.types[dtype]})({self.index(expr)})"
            case Load(mask=None):
                return self.load(ins)
            case Load(mask=mask, other=other, dtype=dtype):
                return f"{self.ref(mask)} ? {self.load(ins)} : {self.literal(other, dtype)}"
            case Compute():
                return self.compute(ins)
            case Part():
                raise UnsupportedOp("welford pairs are expanded before printing")
            case _:
                raise UnsupportedOp(f"no expression for {type(ins).__name__}")

    def load(self, ins: Load) -> str:
        dtype = self.kernel.buffer(ins.buffer).dtype
        element = self.element(ins)
        if dtype in NARROW_FLOATS:
            return self.cast(f"load_{short(dtype)}({element})", torch.float32, ins.dtype)
        if dtype == torch.bool:
            return self.cast(f"({element} != 0)", torch.bool, ins.dtype)
        return self.cast(element, dtype, ins.dtype)

    def element(self, ins: Load) -> str:
        """The memory that a load reads."""
        return f"{ins.buffer}[{self.index(ins.index)}]"

    def stored(self, value: str, have: torch.dtype, buffer: torch.dtype) -> str:
        """The element of a buffer that represents a value."""
        if buffer in NARROW_FLOATS:
            return f"store_{short(buffer)}({self.cast(value, have, torch.float32)})"
        text = self.cast(value, have, buffer)
        return f"({self.memory_types[buffer]}){text}" if buffer in self.memory_types else text

    def cast(self, text: str, have: torch.dtype, want: torch.dtype) -> str:
        """Numeric conversion of an atom."""
        if have == want:
            return text
        if want == torch.bool:
            return f"({text} != 0)"
        # Out of range, a machine converts floats through a wider integer and drops the upper bits.
        if have.is_floating_point and want in (torch.int8, torch.int16):
            text = f"(int32_t){text}"
        if have.is_floating_point and want in (torch.uint8, torch.uint16, torch.uint32):
            text = f"(int64_t){text}"
        return f"({self.value_type(want)}){text}"

    def compute(self, ins: Compute) -> str:
        args = [self.ref(a) for a in ins.args]
        dtypes = [self.kernel.body[a].dtype for a in ins.args]  # type: ignore[union-attr]
        have, want = dtypes[-1], ins.dtype
        match ins.op:
            case "cast":
                return self.cast(args[0], have, want)
            case "round":
                return f"load_{short(ins.attr)}(store_{short(ins.attr)}({args[0]}))"  # type: ignore[arg-type]
            case "bitcast":
                return f"bits_as<{self.value_type(want)}>({args[0]})"
            case "where":
                return f"{args[0]} ? {args[1]} : {args[2]}"
            case "check_index":
                return self.check_index(ins, args[0])
            case "rand":
                return f"rand_uniform({args[0]}, {args[1]})"
            case op if op in _INFIX:
                return self._infix(op, args, have, want)
            case op if not have.is_floating_point:
                return self._integer(op, args, have, want)
            case op:
                return self._floating(op, args)

    def check_index(self, ins: Compute, index: str) -> str:
        raise UnsupportedOp(f"check_index in {type(self).__name__}")

    def _infix(self, op: str, args: list[str], have: torch.dtype, want: torch.dtype) -> str:
        operator = _INFIX[op]
        if op in ("add", "sub", "mul") and not have.is_floating_point:
            if have == torch.bool:
                operator = {"add": "|", "mul": "&", "sub": "^"}[op]
            else:
                # Signed overflow is undefined in C, unsigned overflow wraps.
                wide = "uint64_t" if have.itemsize == 8 else "uint32_t"
                return f"({self.value_type(want)})(({wide}){args[0]} {operator} ({wide}){args[1]})"
        elif op in ("and", "or", "xor") and have.itemsize < 4 and have != torch.bool:
            return f"({self.value_type(want)})({args[0]} {operator} {args[1]})"
        return f"{args[0]} {operator} {args[1]}"

    def _integer(self, op: str, args: list[str], have: torch.dtype, want: torch.dtype) -> str:
        name = self.value_type(have)
        wide = "uint64_t" if have.itemsize == 8 else "uint32_t"
        match op:
            case "not":
                return f"!{args[0]}" if have == torch.bool else f"({name})~{args[0]}"
            case "neg":
                return f"({name})(0 - ({wide}){args[0]})"
            case "abs":
                return f"{args[0]} < 0 ? ({name})(0 - ({wide}){args[0]}) : {args[0]}" if have.is_signed else args[0]
            case "maximum" | "minimum":
                return f"{op[:3]}_int<{name}>({args[0]}, {args[1]})"
            case "floor" | "ceil" | "trunc" | "rint":
                return args[0]
            case "isnan" | "isinf":
                return "false"
            case "signbit":
                return f"{args[0]} < 0"
            case op if op in _INTEGER_CALLS:
                return f"{_INTEGER_CALLS[op]}<{name}>({args[0]}, {args[1]})"
            case op:
                raise UnsupportedOp(f"{op} of {short(have)}")

    def _floating(self, op: str, args: list[str]) -> str:
        match op, args:
            case "neg", [a]:
                return f"-{a}"
            case "div", [a, b]:
                return f"{a} / {b}"
            case "isnan", [a]:
                return f"{a} != {a}"
            case "maximum" | "minimum", [a, b]:
                return f"{op[:3]}_of({a}, {b})"
            case _:
                return f"{self.math}{op}({', '.join(args)})"


class _Indices(ExprPrinter):
    """Index expressions of one kernel: an indirect value prints as `CLikePrinter.ref`, widened first."""

    def __init__(self, printer: CLikePrinter) -> None:
        self.printer = printer

    def _text(self, e: Expr) -> tuple[str, int]:
        if not (e.is_Symbol and is_value(e)):
            return super()._text(e)
        value = int(e.name[1:])
        dtype = self.printer.kernel.body[value].dtype  # type: ignore[union-attr]
        return self.printer.cast(self.printer.ref(value), dtype, torch.int64), ATOM
