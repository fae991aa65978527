"""Merges neighbouring axes that every access walks as one, so that printers see the longest possible loops."""

from __future__ import annotations

from dataclasses import replace

import sympy

from optpass.codegen.expr import Expr, Symbol, axis_symbol, coefficients
from optpass.codegen.ir import Axis, Index, Instruction, Kernel, Load, Store


def merge_axes(kernel: Kernel) -> Kernel:
    """The same kernel with fewer, longer axes.

    Axes ``a`` (outer) and ``b`` (inner) become one where every index expression uses them only as ``a·size(b) + b``.
    Row and column axes are never mixed. Axes of size 1 are dropped.
    """
    kernel = _drop_unit_axes(kernel)
    for group in ("rows", "cols"):
        position = len(getattr(kernel, group)) - 2
        while position >= 0:
            merged = _merged(kernel, group, position)
            kernel = merged or kernel
            position -= 1
    if not kernel.rows and not kernel.cols:  # a scalar: printers may rely on at least one axis
        kernel = replace(kernel, rows=(Axis(axis_symbol("r0"), sympy.S.One),))
    return kernel


def expressions(body: tuple[Instruction, ...]) -> list[Expr]:
    """Every index expression of a body."""
    return [ins.expr if isinstance(ins, Index) else ins.index for ins in body if isinstance(ins, Index | Load | Store)]


def substitute(kernel: Kernel, new: dict[Symbol, Expr]) -> tuple[Instruction, ...]:
    """The body with symbols replaced in every index expression."""
    out = []
    for ins in kernel.body:
        if isinstance(ins, Index):
            ins = replace(ins, expr=ins.expr.xreplace(new))
        elif isinstance(ins, Load | Store):
            ins = replace(ins, index=ins.index.xreplace(new))
        out.append(ins)
    return tuple(out)


def _drop_unit_axes(kernel: Kernel) -> Kernel:
    unit = {a.symbol: sympy.S.Zero for a in kernel.rows + kernel.cols if a.size == 1}
    if not unit:
        return kernel
    keep = lambda axes: tuple(a for a in axes if a.symbol not in unit)
    return replace(kernel, rows=keep(kernel.rows), cols=keep(kernel.cols), body=substitute(kernel, unit))


def _merged(kernel: Kernel, group: str, position: int) -> Kernel | None:
    axes: tuple[Axis, ...] = getattr(kernel, group)
    outer, inner = axes[position], axes[position + 1]
    for e in expressions(kernel.body):
        linear, rest = coefficients(e, (outer.symbol, inner.symbol))
        if rest.free_symbols & {outer.symbol, inner.symbol}:
            return None
        if linear.get(outer.symbol, 0) != sympy.expand(linear.get(inner.symbol, 0) * inner.size):
            return None
    both = Axis(inner.symbol, outer.size * inner.size)
    body = substitute(kernel, {outer.symbol: sympy.S.Zero})
    return replace(kernel, **{group: (*axes[:position], both, *axes[position + 2 :])}, body=body)
