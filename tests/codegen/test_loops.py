"""Schedules for C-like targets: loop order, passes, what is kept, how threads share the work."""

from __future__ import annotations

import pytest
import sympy
import torch

from optpass.codegen.axes import normalise
from optpass.codegen.expr import FloorDiv, Integer, Mod, Symbol, axis_symbol
from optpass.codegen.ir import Axis, Buffer, Builder, Compute, Const, Kernel, Load, Part, Reduce, Store
from optpass.codegen.loops import expand_reductions, schedule
from optpass.codegen.target import Target
from optpass.errors import UnsupportedOp

pytestmark = pytest.mark.null

F32, BOOL = torch.float32, torch.bool
r0, r1, r2, c0, c1 = map(axis_symbol, ("r0", "r1", "r2", "c0", "c1"))
TARGET = Target("cpp", "cpu", "x86-64-avx512", units=2, vector_bytes=64, row_bytes=1 << 20)


def axes(**sizes) -> tuple[Axis, ...]:
    return tuple(Axis(axis_symbol(n), sympy.sympify(s)) for n, s in sizes.items())


def kernel(body, rows, cols=(), sizes=()) -> Kernel:
    stored = {i.buffer for i in body if isinstance(i, Store)}
    names = dict.fromkeys(i.buffer for i in body if isinstance(i, Load | Store))
    return Kernel("k", rows, cols, tuple(Buffer(n, F32, n in stored) for n in names), sizes, (), tuple(body))


def copy(source, target, **rows) -> Kernel:
    return kernel([Load("x", source, F32), Store("y", target, 0)], axes(**rows))


# ---- axes ----


def test_contiguous_axes_merge():
    got = normalise(copy(r0 * 20 + r1 * 5 + r2, r0 * 20 + r1 * 5 + r2, r0=3, r1=4, r2=5))
    assert [(a.symbol.name, a.size) for a in got.rows] == [("r2", 60)]
    assert got.body[0].index == r2


def test_symbolic_contiguous_axes_merge():
    s = Symbol("s0", integer=True, positive=True)
    got = normalise(copy(r0 * s + r1, r0 * s + r1, r0=7, r1=s))
    assert [a.size for a in got.rows] == [7 * s]


def test_a_broadcast_or_a_gap_keeps_axes_apart():
    assert len(normalise(copy(r1, r0 * 5 + r1, r0=3, r1=5)).rows) == 2
    assert len(normalise(copy(r0 * 8 + r1, r0 * 5 + r1, r0=3, r1=5)).rows) == 2


def test_axes_of_size_one_go():
    got = normalise(copy(r0 * 5 + r1, r0 * 5 + r1, r0=1, r1=5))
    assert [a.symbol for a in got.rows] == [r1]
    assert got.body[0].index == r1


def test_quotients_become_axes():
    """A head-major tensor read through a flattened view."""
    head, inside = FloorDiv(r1, 64), Mod(r1, 64)
    got = normalise(copy(head * 640 + r0 * 64 + inside, r0 * 512 + r1, r0=10, r1=512))
    assert sorted(a.size for a in got.rows) == [8, 10, 64]
    assert not any(i.index.has(FloorDiv, Mod) for i in got.body)


def test_quotients_that_do_not_divide_stay():
    got = normalise(copy(FloorDiv(r0, 3), r0, r0=10))
    assert got.body[0].index == FloorDiv(r0, 3)


# ---- reductions ----


def test_welford_becomes_two_sums():
    body = [Load("x", r0 * 9 + c0, F32), Reduce("welford", 0, F32), Part(1, 1, F32), Store("y", r0, 2)]
    got = expand_reductions(kernel(body, axes(r0=4), axes(c0=9)))
    assert [i.op for i in got.body if isinstance(i, Reduce)] == ["sum", "sum"]
    assert len(schedule(got, TARGET).passes) == 2


def test_argmax_becomes_an_extremum_and_a_position():
    body = [Load("x", r0 * 9 + c0, F32), Reduce("argmax", 0, torch.int64), Store("y", r0, 1)]
    got = expand_reductions(kernel(body, axes(r0=4), axes(c0=9)))
    assert [i.op for i in got.body if isinstance(i, Reduce)] == ["max", "min"]


# ---- passes ----


def softmax(rows, cols, sizes=()) -> Kernel:
    b = Builder()
    x = b.emit(Load("x", r0 * cols + c0, F32))
    e = b.emit(Compute("exp", (b.emit(Compute("sub", (x, b.emit(Reduce("max", x, F32))), F32)),), F32))
    b.emit(Store("y", r0 * cols + c0, b.emit(Compute("div", (e, b.emit(Reduce("sum", e, F32))), F32))))
    return kernel(b.body, axes(r0=rows), axes(c0=cols), sizes)


def test_softmax_runs_in_three_passes_and_keeps_the_exponentials():
    plan = schedule(softmax(512, 1000), TARGET)
    assert len(plan.passes) == 3
    exponential = next(i for i, ins in enumerate(plan.kernel.body) if isinstance(ins, Compute) and ins.op == "exp")
    assert [p.writes for p in plan.passes] == [(), (exponential,), ()]
    assert [p.reads for p in plan.passes] == [(), (), (exponential,)]


def test_a_row_beyond_the_cache_is_computed_again():
    plan = schedule(softmax(512, 1 << 20), TARGET)
    assert not any(p.writes for p in plan.passes)


def test_cheap_values_are_computed_again():
    b = Builder()
    x = b.emit(Compute("mul", (b.emit(Load("x", r0 * 99 + c0, F32)),) * 2, F32))
    b.emit(Store("y", r0 * 99 + c0, b.emit(Compute("div", (x, b.emit(Reduce("sum", x, F32))), F32))))
    plan = schedule(kernel(b.body, axes(r0=50), axes(c0=99)), TARGET)
    assert not any(p.writes for p in plan.passes)
    assert plan.passes[1].body[:2] == (0, 1)


def test_a_value_compared_with_its_extremum_is_kept_whatever_its_size():
    b = Builder()
    e = b.emit(Compute("exp", (b.emit(Load("x", r0 * (1 << 20) + c0, F32)),), F32))
    same = b.emit(Compute("eq", (e, b.emit(Reduce("max", e, F32))), BOOL))
    b.emit(Store("y", r0, b.emit(Reduce("any", same, BOOL))))
    plan = schedule(kernel(b.body, axes(r0=64), axes(c0=1 << 20)), TARGET)
    assert plan.passes[0].writes == (e,)
    assert plan.passes[1].reads == (e,)


# ---- loop order ----


def column_sum(rows: int, cols: int) -> Kernel:
    body = [Load("x", c0 * rows + r0, F32), Reduce("sum", 0, F32), Store("y", r0, 1)]
    return kernel(body, axes(r0=rows), axes(c0=cols))


def test_reductions_over_an_outer_axis_use_lanes():
    plan = schedule(column_sum(1000, 500), TARGET)
    assert plan.lane and plan.lane.symbol == r0


def test_reductions_over_the_inner_axis_do_not():
    assert schedule(softmax(512, 1000), TARGET).lane is None


def test_many_short_rows_use_lanes():
    plan = schedule(softmax(10_000, 4), TARGET)
    assert plan.lane and plan.lane.symbol == r0


def test_a_transpose_runs_in_blocks():
    plan = schedule(copy(r1 * 1000 + r0, r0 * 1000 + r1, r0=1000, r1=1000), TARGET)
    assert plan.tile
    assert not schedule(copy(r0 * 9000 + r1, r0 * 1000 + r1, r0=1000, r1=1000), TARGET).tile


def test_the_contiguous_axis_is_innermost():
    plan = schedule(copy(r0 + r1 * 64, r0 + r1 * 100, r0=50, r1=70), TARGET)
    assert [a.symbol for a in plan.inner] == [r0]


# ---- threads ----


def test_rows_are_shared_where_there_are_enough():
    plan = schedule(softmax(512, 1000), TARGET)
    assert plan.parallel and plan.split is None


def test_columns_are_shared_where_rows_are_few():
    plan = schedule(softmax(2, 1 << 20), TARGET)
    assert plan.split and plan.split.symbol == c0
    assert schedule(column_sum(64, 100_000), TARGET).split


def test_small_work_is_serial_and_unknown_work_is_decided_at_run_time():
    assert not schedule(softmax(4, 100), TARGET).parallel
    s = Symbol("s0", integer=True, positive=True)
    assert schedule(softmax(s, 100, (s,)), TARGET).parallel


# ---- buffers both read and written ----


def test_updates_in_place_wait_for_the_last_reader():
    b = Builder()
    x = b.emit(Load("x", r0 * 99 + c0, F32))
    b.emit(Store("x", r0 * 99 + c0, b.emit(Compute("neg", (x,), F32))))
    b.emit(Store("y", r0 * 99 + c0, b.emit(Compute("sub", (x, b.emit(Reduce("max", x, F32))), F32))))
    plan = schedule(kernel(b.body, axes(r0=50), axes(c0=99)), TARGET)
    assert 2 in plan.passes[-1].body


@pytest.mark.parametrize("target", [r0 + 1, 2 * r0])
def test_shifted_updates_in_place_are_refused(target):
    body = [Load("x", r0, F32), Store("x", target, 0)]
    with pytest.raises(UnsupportedOp, match="reads x"):
        schedule(kernel(body, axes(r0=10)), TARGET)


def test_constants_alone_make_a_kernel():
    plan = schedule(kernel([Const(1.0, F32), Store("y", r0, 0)], axes(r0=10)), TARGET)
    assert len(plan.passes) == 1
    assert Integer(10) == plan.inner[0].size


def test_a_transposing_block_is_copied_in_the_order_of_memory():
    plan = schedule(copy(r1 * 1000 + r0, r0 * 1000 + r1, r0=1000, r1=1000), TARGET)
    assert plan.staged == (0,)


def test_loops_write_in_the_order_of_memory():
    plan = schedule(copy(r0 * 160 + r1 * 10 + r2 + 5 * r2, r0 * 20 + r1 * 60 + r2, r0=3, r1=16, r2=20), TARGET)
    assert [a.symbol for a in plan.outer] == [r1, r0]
