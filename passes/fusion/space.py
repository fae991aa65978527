"""Iteration spaces of groups: axes, where each value lies in them, and how two spaces become one.

A place is the index of a tensor in terms of a space's axes (see `optpass.codegen.dims`), here always made of whole
axes; where a shape cuts an axis in the middle, the axis is split everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from optpass.codegen.dims import Dim, divide, regroup, single
from optpass.codegen.expr import Expr, Symbol, axis_symbol
from optpass.torch_private import FloorDiv, Mod

Place = tuple[Dim, ...]

_numbers = itertools.count()


def fresh_axis(size: Expr) -> Dim:
    """A dimension of its own: one new axis, or no digit for size 1."""
    return single(axis_symbol(f"r{next(_numbers)}"), size)


class Space:
    """The axes of one group, in order, and the places of its values.

    Attributes:
        axes: symbol -> size, outermost first.
        reduced: the axes that the group's reductions fold; None while nothing in it reduces.
        places: node name (or ``name.input`` for a reduction's input) -> place.
        reads: tensors read from memory -> the place they are first read at.
    """

    def __init__(self) -> None:
        self.axes: dict[Symbol, Expr] = {}
        self.reduced: frozenset[Symbol] | None = None
        self.places: dict[str, Place] = {}
        self.reads: dict[str, Place] = {}

    def copy(self) -> Space:
        other = Space()
        other.axes, other.reduced = dict(self.axes), self.reduced
        other.places, other.reads = dict(self.places), dict(self.reads)
        return other

    def add_axes(self, place: Sequence[Dim]) -> None:
        for dim in place:
            for symbol, size in dim:
                self.axes.setdefault(symbol, size)  # type: ignore[arg-type]

    def covers(self, place: Sequence[Dim]) -> bool:
        """Whether a value varies along all axes, or along exactly those that are not reduced, each in one dim only.

        The last matters: ``x[:, None] + x[None, :]`` would put both dims on one axis and compute the diagonal alone.
        """
        used = axes_of(place)
        if sum(map(len, place)) != len(used):
            return False
        everything = frozenset(self.axes)
        return used == everything or (self.reduced is not None and used == everything - self.reduced)

    def substitute(self, new: dict[Symbol, Dim]) -> None:
        """Replaces axes by one or more digits each, everywhere."""
        self.axes = {s: n for old, size in self.axes.items() for s, n in new.get(old, ((old, size),))}  # type: ignore[misc]
        if self.reduced is not None:
            self.reduced = frozenset(s for old in self.reduced for s, _ in new.get(old, ((old, None),)))  # type: ignore[misc]
        self.places = {k: replaced(p, new) for k, p in self.places.items()}
        self.reads = {k: replaced(p, new) for k, p in self.reads.items()}

    def split(self, symbol: Symbol, low_size: Expr) -> dict[Symbol, Dim]:
        """Cuts an axis into an outer and an inner one of ``low_size``; returns the substitution made."""
        high = fresh_axis(self.axes[symbol] / low_size)
        new = {symbol: (*high, *fresh_axis(low_size))}
        self.substitute(new)
        return new

    def regrouped(self, place: Sequence[Dim], shape: Sequence[Expr]) -> Place | None:
        """`regroup` that splits axes instead of dividing indices; None where sizes do not nest."""
        for _ in range(8):
            out = regroup(place, shape)
            if out is None:
                return None
            cut = self._cut(out)
            if cut is None:
                return tuple(out)
            if not cut:
                return None
            place = replaced(place, self.split(*cut))
        return None

    def _cut(self, place: Sequence[Dim]) -> tuple[Symbol, Expr] | tuple[()] | None:
        """The first axis that a place divides, with the inner size; () if it cannot be cut; None if all are whole.

        An axis may walk only part of the dimension that it indexes (a slice), so that its own size decides.
        """
        for dim in place:
            for expr, _ in dim:
                if expr in self.axes:
                    continue
                if isinstance(expr, FloorDiv | Mod) and expr.args[0] in self.axes:
                    axis, low = expr.args
                    return (axis, low) if divide(self.axes[axis], low) is not None else ()  # type: ignore[index]
                return ()
        return None

    def ordered(self, symbols: frozenset[Symbol]) -> Dim:
        """Some of the axes as digits, in the space's order."""
        return tuple((s, n) for s, n in self.axes.items() if s in symbols)


def axes_of(place: Sequence[Dim]) -> frozenset[Symbol]:
    return frozenset(s for dim in place for s, _ in dim)  # type: ignore[misc]


def replaced(place: Sequence[Dim], new: dict[Symbol, Dim]) -> Place:
    return tuple(tuple(d for s, n in dim for d in new.get(s, ((s, n),))) for dim in place)  # type: ignore[arg-type]


def align(a: Space, at: Sequence[Dim | None], b: Space, bt: Sequence[Dim | None]) -> bool:
    """Renames axes of ``b`` to those of ``a`` so that the two places coincide; False where sizes do not match.

    ``b`` (and by splitting ``a``) is changed on the way even if the answer is False: pass copies.
    """
    for d in range(len(at)):
        for _ in range(16):
            # Substitutions change both places, so each step looks afresh.
            da, db = at[d], bt[d]
            if da is None or db is None:
                break
            step = _first_difference(da, db)
            if step is None:
                break
            (sa, na), (sb, nb) = step
            if na == nb:
                if sa in b.axes or sb in a.axes:
                    return False
                new_b: dict[Symbol, Dim] = {sb: ((sa, na),)}
                b.substitute(new_b)
                bt = _replace_known(bt, new_b)
            elif na.is_Integer and nb.is_Integer and na % nb == 0:
                at = _replace_known(at, a.split(sa, nb))
            elif na.is_Integer and nb.is_Integer and nb % na == 0:
                bt = _replace_known(bt, b.split(sb, na))
            else:
                return False
        else:
            return False
        if at[d] is not None and bt[d] is not None and at[d] != bt[d]:
            return False
    return True


def _replace_known(place: Sequence[Dim | None], new: dict[Symbol, Dim]) -> list[Dim | None]:
    return [None if dim is None else replaced([dim], new)[0] for dim in place]


def _first_difference(a: Dim, b: Dim):
    """The least significant digits in which two dims differ."""
    for x, y in zip(reversed(a), reversed(b)):
        if x != y:
            return x, y
    return None


def renamed(space: Space) -> tuple[dict[Symbol, Symbol], list[Symbol], list[Symbol]]:
    """Canonical axis names: ``r0…`` for rows, ``c0…`` for columns, in the space's order."""
    reduced = space.reduced or frozenset()
    rows = [s for s in space.axes if s not in reduced]
    cols = [s for s in space.axes if s in reduced]
    names = {s: axis_symbol(f"r{i}") for i, s in enumerate(rows)}
    names |= {s: axis_symbol(f"c{i}") for i, s in enumerate(cols)}
    return names, rows, cols
