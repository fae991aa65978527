"""Digits: reshapes of index maps, checked element by element."""

from __future__ import annotations

import itertools

import pytest
import sympy

from optpass.codegen.dims import linear, regroup, single, value
from optpass.codegen.expr import axis_symbol

pytestmark = pytest.mark.null


def strides(shape):
    out, step = [], 1
    for n in reversed(shape):
        out.insert(0, step)
        step *= n
    return out


@pytest.mark.parametrize(
    "before, after",
    [
        ((12,), (3, 4)), ((3, 4), (12,)), ((3, 4), (6, 2)), ((2, 3, 4), (4, 6)), ((6, 4), (2, 3, 2, 2)),
        ((1, 6), (2, 1, 3)), ((4, 6), (3, 8)), ((6,), (1, 6, 1)), ((2, 9), (6, 3)), ((), (1, 1)), ((1,), ()),
        ((10, 6), (4, 15)),
    ],
)  # fmt: skip
def test_regroup_keeps_the_element(before, after):
    axes = [axis_symbol(f"r{d}") for d in range(len(before))]
    place = [single(a, sympy.Integer(n)) for a, n in zip(axes, before)]
    out = regroup(place, [sympy.Integer(n) for n in after])
    assert out is not None and len(out) == len(after)
    there, here = linear(out, strides(after)), linear(place, strides(before))
    for point in itertools.product(*map(range, before)):
        at = dict(zip(axes, point))
        assert there.subs(at) == here.subs(at)
        for dim, size in zip(out, after):
            assert 0 <= value(dim).subs(at) < size


def test_symbolic_sizes_regroup_where_they_nest():
    s, t = sympy.symbols("s0 s1", integer=True, positive=True)
    a, b = axis_symbol("r0"), axis_symbol("r1")
    place = [single(a, s), single(b, t)]
    (flat,) = regroup(place, [s * t])
    assert value(flat) == a * t + b
    assert regroup([flat], [s, t]) == [((a, s),), ((b, t),)]
    assert regroup(place, [t, s]) is None
