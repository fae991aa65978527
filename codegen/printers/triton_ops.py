"""Single operations of the kernel IR as Triton text."""

from __future__ import annotations

import math
import re

import torch

from optpass.codegen.ir import Compute, short
from optpass.errors import UnsupportedOp

#: Triton's names of dtypes in signatures; a dtype that is missing cannot be in memory.
POINTEES = {
    torch.bool: "i1", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8",
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5",
}  # fmt: skip
_TYPES = {torch.bool: "int1", torch.float8_e4m3fn: "float8e4nv", torch.float8_e5m2: "float8e5"}
_BITS = {1: "tl.int8", 2: "tl.int16", 4: "tl.int32", 8: "tl.int64"}

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "tdiv": "//",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_LIBDEVICE = frozenset(
    {
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "trunc", "fmod", "atan2", "copysign",
    }
)  # fmt: skip
_FOLDS = {
    "sum": "add", "prod": "multiply", "any": "either", "all": "both", "max": "maximum", "min": "minimum",
    "argmax": "argmax", "argmin": "argmin", "welford": "welford",
}  # fmt: skip
#: Functions of `triton_helpers`, imported where the text calls or names them.
HELPERS = frozenset(
    {
        "add", "multiply", "either", "both", "maximum", "minimum", "argmax", "argmin", "welford", "floor_div",
        "floor_mod", "pow_int", "wrap_index", "uniform", "to_float8e5",
    }
)  # fmt: skip


def imports(text: str) -> str:
    """The import lines that a printed function needs."""
    words = set(re.findall(r"(?<![.\w])\w+", text))
    lines = ["import triton", "import triton.language as tl"]
    if "libdevice" in words:
        lines.append("from triton.language.extra import libdevice")
    if used := sorted(words & HELPERS):
        lines.append("")
        lines.append(f"from optpass.codegen.printers.triton_helpers import {', '.join(used)}")
    return "\n".join(lines) + "\n\n\n"


def tl_type(dtype: torch.dtype) -> str:
    """``tl.float32`` for ``torch.float32``."""
    return f"tl.{_TYPES.get(dtype, short(dtype))}"


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        return str(int(value))
    return repr(float(value)) if math.isfinite(value) else f'float("{float(value)}")'


def is_plain(value: bool | int | float, dtype: torch.dtype) -> bool:
    """Whether a literal beside an operand of the dtype means the same as the constant."""
    return dtype in (torch.float32, torch.int32, torch.int64) and not is_negative_zero(value)


def is_negative_zero(value: bool | int | float) -> bool:
    return value == 0 and math.copysign(1, value) < 0


def constant(value: bool | int | float, dtype: torch.dtype) -> str:
    """A scalar of the dtype."""
    if is_negative_zero(value):
        # Triton takes -0.0 for 0.
        return f"tl.full([], 0.0, {tl_type(dtype)}) * -1.0"
    return f"tl.full([], {literal(value, dtype)}, {tl_type(dtype)})"


def narrow(text: str, dtype: torch.dtype) -> str:
    """A float32 value rounded to a narrow dtype."""
    if dtype == torch.float8_e5m2:
        # Hardware saturates; PyTorch does so for float8_e4m3fn only.
        return f"to_float8e5({text})"
    return f"{text}.to({tl_type(dtype)})"


def divide(a: str, b: str, dtype: torch.dtype) -> str:
    """A true division rounded as IEEE 754 says; Triton's plain ``/`` of float32 is off by up to 2 ulp."""
    return f"tl.div_rn({a}, {b})" if dtype == torch.float32 else f"{a} / {b}"


def combine(op: str, dtype: torch.dtype) -> str:
    """The helper that joins two partial results of a reduction."""
    if dtype == torch.bool:
        op = {"max": "any", "min": "all", "sum": "any", "prod": "all"}.get(op, op)
    return _FOLDS[op]


def identity(op: str, dtype: torch.dtype) -> bool | int | float:
    """What a reduction of nothing holds: joined with any value it gives that value."""
    match op:
        case "sum" | "welford" | "any":
            return 0
        case "prod" | "all":
            return 1
    is_max = op in ("max", "argmax")
    if dtype == torch.bool:
        return not is_max
    if dtype.is_floating_point:
        return -math.inf if is_max else math.inf
    return torch.iinfo(dtype).min if is_max else torch.iinfo(dtype).max


def compute(ins: Compute, args: list[str], dtypes: list[torch.dtype]) -> str:
    """The text of an operation.

    Args:
        args: names or literals of the operands.
        dtypes: their dtypes.

    Raises:
        UnsupportedOp: Triton has no such operation.
    """
    a, dtype = args[0], dtypes[0]
    op = ins.op
    if op in ("maximum", "minimum", "add", "mul") and dtype == torch.bool:
        op = "or" if op in ("maximum", "add") else "and"
    if op in INFIX:
        return f"{a} {INFIX[op]} {args[1]}"
    if op in _LIBDEVICE and dtype.is_floating_point:
        return f"libdevice.{op}({', '.join(args)})"
    match op:
        case "neg":
            # Triton's unary minus is 0 - x, which loses the sign of zero.
            return f"{a} * -1.0" if dtype.is_floating_point else f"-{a}"
        case "abs" | "floor" | "ceil" | "rsqrt" | "where":
            return f"tl.{op}({', '.join(args)})"
        case "rint":
            return f"libdevice.nearbyint({a})"
        case "sqrt":
            return f"tl.sqrt_rn({a})" if dtype == torch.float32 else f"tl.sqrt({a})"
        case "not":
            return f"~{a}"
        case "isnan":
            return f"{a} != {a}"
        case "isinf":
            return f'tl.abs({a}) == float("inf")'
        case "signbit":
            return f"{a}.to({_BITS[dtype.itemsize]}, bitcast=True) < 0" if dtype.is_floating_point else f"{a} < 0"
        case "cast":
            return f"{a} != 0" if ins.dtype == torch.bool else f"{a}.to({tl_type(ins.dtype)})"
        case "round":
            return f"{narrow(a, ins.attr)}.to({tl_type(ins.dtype)})"
        case "bitcast":
            return f"{a}.to({tl_type(ins.dtype)}, bitcast=True)"
        case "div":
            return divide(a, args[1], dtype)
        case "idiv" | "imod":
            return f"floor_{op[1:]}({a}, {args[1]})"
        case "fmod":
            return f"{a} % {args[1]}"
        case "pow":
            return f"libdevice.pow({a}, {args[1]})" if dtype.is_floating_point else f"pow_int({a}, {args[1]})"
        case "maximum" | "minimum":
            return f"{op}({a}, {args[1]})"
        case "rand":
            return f"uniform({a}, {args[1]})"
    raise UnsupportedOp(f"Triton kernels have no {op} of {short(dtype)}")
