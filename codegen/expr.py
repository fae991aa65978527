"""Index expressions: sympy expressions over axis, size and indirect symbols.

Three families of symbols, told apart by name, so that a printer needs no side table:

* axis symbols ``r0, r1, …`` (row axes) and ``c0, c1, …`` (column axes): non-negative loop indices;
* size symbols ``s0, s77, u0, …``: run-time integers taken from PyTorch's shape environment, passed as kernel arguments;
* value symbols ``v<k>``: the run-time value of instruction *k* of the same kernel (an indirect index, proven ≥ 0).
"""

from __future__ import annotations

import sympy
from sympy import Expr, Integer, Symbol

from optpass.torch_private import FloorDiv, Mod

__all__ = [
    "Expr",
    "Integer",
    "Symbol",
    "axis_symbol",
    "coefficients",
    "floor_div",
    "is_axis",
    "is_value",
    "mod",
    "value_symbol",
]


def axis_symbol(name: str) -> Symbol:
    """A loop index: integer and non-negative."""
    return Symbol(name, integer=True, nonnegative=True)


def value_symbol(instruction: int) -> Symbol:
    """The run-time value of instruction number ``instruction`` used inside an index."""
    return Symbol(f"v{instruction}", integer=True, nonnegative=True)


def is_axis(symbol: Symbol) -> bool:
    return symbol.name[0] in "rc" and symbol.name[1:].isdigit()


def is_value(symbol: Symbol) -> bool:
    return symbol.name[0] == "v" and symbol.name[1:].isdigit()


def floor_div(a: Expr, b: Expr) -> Expr:
    """``a // b`` rounded to minus infinity, for ``b > 0``."""
    if b == 1:
        return a
    return FloorDiv(a, b)


def mod(a: Expr, b: Expr) -> Expr:
    """``a - b * (a // b)``, for ``a ≥ 0`` and ``b > 0``."""
    if b == 1:
        return sympy.S.Zero
    return Mod(a, b)


def coefficients(expr: Expr, axes: tuple[Symbol, ...]) -> tuple[dict[Symbol, Expr], Expr]:
    """Splits ``expr`` into ``Σ coefficient·axis + rest``.

    Axes inside a non-linear term stay in ``rest``; an axis that occurs there may also have a coefficient.
    """
    wanted, linear, rest = set(axes), {}, []
    for term in sympy.Add.make_args(sympy.expand(expr)):
        inside = term.free_symbols & wanted
        if len(inside) == 1:
            (axis,) = inside
            coefficient, power = term.as_independent(axis, as_Add=False)
            if power == axis:
                linear[axis] = linear.get(axis, sympy.S.Zero) + coefficient
                continue
        rest.append(term)
    return linear, sympy.Add(*rest)
