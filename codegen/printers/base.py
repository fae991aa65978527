"""What the printers of every target share: index expressions as text, and an indenting line writer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sympy

from optpass.codegen.expr import Expr
from optpass.errors import UnsupportedOp

#: Binding strength of a printed expression: sums, then products and quotients, then names, calls and literals.
SUM, PRODUCT, ATOM = 1, 2, 3


class ExprPrinter:
    """Prints an integer index expression; symbols print as their names.

    The target's integer division truncates, so a floor division (or Python's modulo) prints as the plain operator only
    where both operands are known not to be negative, and as a call of `floor_div` (`floor_mod`) elsewhere. Subclasses
    change the class attributes for another language.
    """

    div, mod = "/", "%"
    floor_div, floor_mod = "floor_div", "floor_mod"
    max, min = "max_int", "min_int"

    def __call__(self, expr: Expr | int) -> str:
        return self._text(sympy.sympify(expr))[0]

    def atom(self, expr: Expr | int) -> str:
        """The text in parentheses unless it is a single name, call or non-negative literal."""
        return self._within(sympy.sympify(expr), ATOM)

    def _within(self, e: Expr, strength: int) -> str:
        text, own = self._text(e)
        return text if own >= strength else f"({text})"

    def _text(self, e: Expr) -> tuple[str, int]:
        if e.is_Symbol:
            return e.name, ATOM
        if e.is_Integer:
            return str(int(e)), ATOM if e >= 0 else SUM
        if e.is_Add:
            return self._sum(e), SUM
        if e.is_Mul or e.is_Rational or (e.is_Pow and e.exp.is_negative):
            return self._product(e)
        if e.func.__name__ in ("Pow", "PowByNatural") and e.args[1].is_Integer:
            return " * ".join([self._within(e.args[0], ATOM)] * int(e.args[1])), PRODUCT
        return self._function(e)

    def _sum(self, e: Expr) -> str:
        out = ""
        # A constant goes last: `r0 + 1` reads better, and the order is the same for equal expressions.
        for term in sorted(e.as_ordered_terms(), key=lambda t: t.is_Number):
            negative = term.as_coeff_Mul()[0].is_negative
            text = self._within(-term if negative else term, PRODUCT)
            out += (" - " if out else "-") + text if negative else (" + " if out else "") + text
        return out

    def _product(self, e: Expr) -> tuple[str, int]:
        # A rational coefficient or a negative power only comes from a quotient that is known to be whole.
        top, bottom = e.as_numer_denom()
        if bottom != 1:
            return f"{self._within(top, PRODUCT)} {self.div} {self._within(bottom, ATOM)}", PRODUCT
        if e.as_coeff_Mul()[0].is_negative:
            return f"-{self._within(-e, ATOM)}", SUM
        # Quotients and remainders go in parentheses: `a * b / c` would bind to the left.
        return " * ".join(self._within(f, ATOM) for f in e.as_ordered_factors()), PRODUCT

    def _function(self, e: Expr) -> tuple[str, int]:
        match e.func.__name__, e.args:
            case "Identity", (a,):
                return self._text(a)
            case "FloorDiv", (a, b):
                return self._quotient(a, b, self.div, self.floor_div)
            case "CleanDiv", (a, b):
                return f"{self._within(a, PRODUCT)} {self.div} {self._within(b, ATOM)}", PRODUCT
            case "Mod" | "PythonMod", (a, b):
                return self._quotient(a, b, self.mod, self.floor_mod)
            case "Max", args:
                return self._fold(self.max, args), ATOM
            case "Min", args:
                return self._fold(self.min, args), ATOM
            case name, _:
                raise UnsupportedOp(f"no text for the index expression {name} in {e}")

    def _quotient(self, a: Expr, b: Expr, operator: str, function: str) -> tuple[str, int]:
        if a.is_nonnegative and b.is_nonnegative:
            return f"{self._within(a, PRODUCT)} {operator} {self._within(b, ATOM)}", PRODUCT
        return f"{function}({self(a)}, {self(b)})", ATOM

    def _fold(self, function: str, args: tuple[Expr, ...]) -> str:
        out = self(args[0])
        for a in args[1:]:
            out = f"{function}({out}, {self(a)})"
        return out


class Writer:
    """Collects lines at a current indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def __call__(self, line: str = "") -> None:
        self.lines.append("    " * self._depth + line if line else "")

    @contextmanager
    def block(self, head: str, tail: str = "") -> Iterator[None]:
        """Writes ``head``, what the body writes one step deeper, and ``tail`` unless it is empty."""
        self(head)
        self._depth += 1
        yield
        self._depth -= 1
        if tail:
            self(tail)

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"
