"""How C++ kernels accumulate each reduction."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from optpass.codegen.ir import Reduce
from optpass.codegen.printers.c_like import CLikePrinter


@dataclass(frozen=True)
class Fold:
    """Accumulation of one reduction.

    Attributes:
        type: C type of an accumulator inside the innermost loop.
        total: C type outside of it; wider for sums of floats.
        start: the identity.
        clause: identifier in OpenMP's ``reduction`` clause.
        statement: combines accumulator ``{a}`` with value ``{v}``.
    """

    type: str
    total: str
    start: str
    clause: str
    statement: str

    def combine(self, accumulator: str, value: str) -> str:
        return self.statement.format(a=accumulator, v=value)


def fold(ins: Reduce, printer: CLikePrinter) -> Fold:
    """The accumulation of a reduction (not of ``welford``, ``argmax`` and ``argmin``, which are expanded before)."""
    dtype, op = ins.dtype, ins.op
    name = printer.value_type(dtype)
    if dtype == torch.bool:
        sign = "|" if op in ("any", "max", "sum") else "&"
        return Fold("uint8_t", "uint8_t", "0" if sign == "|" else "1", sign, f"{{a}} {sign}= {{v}};")
    if op in ("sum", "prod"):
        sign, start = ("+", "0") if op == "sum" else ("*", "1")
        if dtype.is_floating_point:
            return Fold(name, "double", start, sign, f"{{a}} {sign}= {{v}};")
        # Unsigned, as signed overflow is undefined.
        name = name if name.startswith("u") else f"u{name}"
        return Fold(name, name, start, sign, f"{{a}} {sign}= ({name}){{v}};")
    if dtype.is_floating_point:
        start = printer.literal(float("-inf") if op == "max" else float("inf"), dtype)
        return Fold(name, name, start, f"nan_{op}", f"{{a}} = {op}_of({{v}}, {{a}});")
    info = torch.iinfo(dtype)
    start = printer.literal(info.min if op == "max" else info.max, dtype)
    return Fold(name, name, start, op, f"{{a}} = {op}_int<{name}>({{a}}, {{v}});")
