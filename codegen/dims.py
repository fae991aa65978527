"""Index maps through views, as digits instead of divisions.

The index of one dimension is a `Dim`: a tuple of digits ``(expression, size)``, most significant first, whose value is
the mixed-radix number that they spell. A reshape only regroups digits, so it costs no ``//`` and no ``%`` in the
kernel as long as axes are cut where shapes cut them; a digit that a shape cuts in the middle is divided. A dimension of
size 1 has no digits.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from optpass.codegen.expr import Expr, floor_div, mod

Digit = tuple[Expr, Expr]
Dim = tuple[Digit, ...]


def single(expr: Expr, size: Expr) -> Dim:
    """The dimension of ``size`` whose index is ``expr``."""
    return () if size == 1 else ((sympy.sympify(expr), sympy.sympify(size)),)


def value(dim: Dim) -> Expr:
    """The index that the digits spell."""
    out: Expr = sympy.S.Zero
    for expr, size in dim:
        out = out * size + expr
    return out


def size_of(dim: Dim) -> Expr:
    return sympy.Mul(*(s for _, s in dim))


def linear(dims: Sequence[Dim], strides: Sequence[Expr]) -> Expr:
    """The element offset ``Σ index·stride`` of a point."""
    return sympy.Add(*(value(d) * s for d, s in zip(dims, strides)))


def regroup(dims: Sequence[Dim], shape: Sequence[Expr]) -> list[Dim] | None:
    """The same point of a tensor of equal element count seen with another ``shape`` (row-major order kept).

    Returns None where divisibility cannot be proved (symbolic sizes that do not nest).
    """
    digits = [d for dim in dims for d in dim]
    out: list[Dim] = []
    for target in reversed([sympy.sympify(s) for s in shape]):
        taken: list[Digit] = []
        while target != 1:
            if not digits:
                return None
            expr, size = digits.pop()
            if (quotient := divide(target, size)) is not None:
                taken.append((expr, size))
                target = quotient
            elif (quotient := divide(size, target)) is not None:
                taken.append((mod(expr, target), target))
                digits.append((floor_div(expr, target), quotient))
                target = sympy.S.One
            else:
                common = sympy.gcd(target, size)
                if common == 1 or not common.is_Integer or not (target.is_Integer and size.is_Integer):
                    return _through_linear(dims, shape)
                digits += [(floor_div(expr, common), size // common), (mod(expr, common), common)]
        out.append(tuple(reversed(taken)))
    return out[::-1] if not digits else None


def _through_linear(dims: Sequence[Dim], shape: Sequence[Expr]) -> list[Dim] | None:
    """Regrouping by the flat position, for static shapes whose sizes do not nest (3×4 seen as 6×2 through 3)."""
    digits = tuple(d for dim in dims for d in dim)
    if not all(sympy.sympify(s).is_Integer for s in [*shape, *(s for _, s in digits)]):
        return None
    flat, below, out = value(digits), 1, []
    for size in reversed(shape):
        digit = floor_div(flat, sympy.Integer(below))
        out.append(single(mod(digit, sympy.sympify(size)), size))
        below *= int(size)
    return out[::-1]


def divide(a: Expr, b: Expr) -> Expr | None:
    """``a / b`` where it is an integer for sure."""
    if a.is_Integer and b.is_Integer:
        return a // b if a % b == 0 else None
    quotient = a / b
    return quotient if quotient.is_integer and not quotient.is_negative else None
