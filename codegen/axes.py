"""Rewrites of a kernel's axes that change no value: trivial axes go, quotients become axes, contiguous axes merge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise, permutations

import sympy

from optpass.codegen.expr import Expr, Symbol, axis_symbol, coefficients
from optpass.codegen.ir import Axis, Index, Instruction, Kernel, Load, Store


def expressions(kernel: Kernel) -> Iterator[Expr]:
    """Every index expression of the body."""
    for ins in kernel.body:
        if isinstance(ins, Load | Store):
            yield ins.index
        elif isinstance(ins, Index):
            yield ins.expr


def strides(expr: Expr, axes: tuple[Symbol, ...]) -> dict[Symbol, Expr | None]:
    """For each axis in ``expr`` its coefficient, or None where the expression is not linear in it."""
    linear, rest = coefficients(expr, axes)
    out: dict[Symbol, Expr | None] = dict(linear)
    for a in axes:
        if a in rest.free_symbols or any(a in c.free_symbols for c in linear.values()):
            out[a] = None
    return out


def normalise(kernel: Kernel) -> Kernel:
    """Drops axes of size 1, splits axes at quotients and remainders, and merges axes that every access sees as one."""
    kernel = _drop_unit_axes(kernel)
    for axis in kernel.rows + kernel.cols:
        kernel = _split(kernel, axis)
    return _merge(kernel)


def _rewritten(kernel: Kernel, rows: Iterable[Axis], cols: Iterable[Axis], change: Callable[[Expr], Expr]) -> Kernel:
    def each(ins: Instruction) -> Instruction:
        if isinstance(ins, Load | Store):
            return replace(ins, index=change(ins.index))
        if isinstance(ins, Index):
            return replace(ins, expr=change(ins.expr))
        return ins

    return replace(kernel, rows=tuple(rows), cols=tuple(cols), body=tuple(map(each, kernel.body)))


def _drop_unit_axes(kernel: Kernel) -> Kernel:
    unit = {a.symbol: sympy.S.Zero for a in kernel.rows + kernel.cols if a.size == 1}
    if not unit:
        return kernel
    keep = lambda axes: [a for a in axes if a.symbol not in unit]
    # A reduction needs a column axis to run over.
    cols = keep(kernel.cols) or kernel.cols[:1]
    return _rewritten(kernel, keep(kernel.rows), cols, lambda e: e.xreplace(unit))


def fresh_axis(kernel: Kernel, letter: str) -> Symbol:
    """An axis symbol ``<letter><k>`` that the kernel does not use."""
    used = [int(a.symbol.name[1:]) for a in kernel.rows + kernel.cols if a.symbol.name[0] == letter]
    return axis_symbol(f"{letter}{max(used, default=-1) + 1}")


def _cuts(kernel: Kernel, axis: Symbol) -> dict[Expr, tuple[int, int | None]]:
    """Quotients and remainders of the bare axis: node → (d, m), meaning ``axis // d % m`` (no ``% m`` where None)."""
    found: dict[Expr, tuple[int, int | None]] = {}
    for expr in expressions(kernel):
        for node in expr.find(lambda e: e.func.__name__ in ("FloorDiv", "Mod", "PythonMod")):
            base, by = node.args
            if not by.is_Integer:
                continue
            if base == axis:
                found[node] = (int(by), None) if node.func.__name__ == "FloorDiv" else (1, int(by))
            elif base.func.__name__ == "FloorDiv" and base.args[0] == axis and base.args[1].is_Integer:
                found[node] = (int(base.args[1]), int(by))
    return found


def _split(kernel: Kernel, axis: Axis) -> Kernel:
    """Splits an axis into mixed-radix digits where that turns every quotient of it into a sum of digits."""
    cuts = _cuts(kernel, axis.symbol)
    places = sorted({d for d, _ in cuts.values()} | {d * m for d, m in cuts.values() if m} | {1})
    whole = all(b % a == 0 for a, b in pairwise(places))
    if not cuts or not whole or not (sympy.sympify(axis.size) / places[-1]).is_integer:
        return kernel
    if places[-1] == axis.size:
        places.pop()
    digits: list[tuple[Axis, int]] = []
    grown = kernel
    for place, above in pairwise([*places, axis.size]):
        digit = Axis(fresh_axis(grown, axis.symbol.name[0]), sympy.sympify(above) / place)
        grown = replace(grown, rows=(*grown.rows, digit))
        digits.append((digit, place))
    part = lambda low, high: sympy.Add(
        *(d.symbol * (p // low) for d, p in digits if p >= low and (high is None or p < high))
    )
    rules = {node: part(d, None if m is None else d * m) for node, (d, m) in cuts.items()}
    rules[axis.symbol] = part(1, None)
    new = [d for d, _ in reversed(digits)]
    put = lambda axes: [n for a in axes for n in (new if a == axis else [a])]
    return _rewritten(kernel, put(kernel.rows), put(kernel.cols), lambda e: e.xreplace(rules))


def _merge(kernel: Kernel) -> Kernel:
    """Merges pairs of axes of one group until no pair is contiguous in every access."""
    while pair := _contiguous_pair(kernel):
        kernel = _merged(kernel, *pair)
    return kernel


def _contiguous_pair(kernel: Kernel) -> tuple[Axis, Axis] | None:
    axes = tuple(a.symbol for a in kernel.rows + kernel.cols)
    table = [strides(e, axes) for e in set(expressions(kernel))]
    for group in (kernel.rows, kernel.cols):
        for outer, inner in permutations(group, 2):
            if all(_contiguous(by.get(outer.symbol, 0), by.get(inner.symbol, 0), inner.size) for by in table):
                return outer, inner
    return None


def _contiguous(outer: Expr | None, inner: Expr | None, size: Expr) -> bool:
    return outer is not None and inner is not None and sympy.expand(outer - inner * size) == 0


def _merged(kernel: Kernel, outer: Axis, inner: Axis) -> Kernel:
    # The inner symbol is reused for the merged axis: an access b * (outer * size + inner) becomes b * inner.
    both = Axis(inner.symbol, sympy.sympify(outer.size) * inner.size)
    put = lambda axes: [both if a == inner else a for a in axes if a != outer]
    gone = {outer.symbol: sympy.S.Zero}
    return _rewritten(kernel, put(kernel.rows), put(kernel.cols), lambda e: sympy.expand(e).xreplace(gone))
