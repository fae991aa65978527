"""What becomes one kernel, what does not, and why: counted in compiled graphs, whose kernels are interpreted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from optpass.backend import Compilation
from optpass.options import Options
from optpass.testing import check_program, tensor
from optpass.testing.runtimes import interpreted

pytestmark = pytest.mark.null


class Outcome:
    """Kernels launched and the reports of a function's graphs, after a check against eager."""

    def __init__(self, fn, *inputs, dynamic=None, **options) -> None:
        torch._dynamo.reset()
        self.reports = []

        def backend(gm, examples, **_):
            compilation = Compilation(Options.parse(None, {"cache": False, "verify": "strict", **options}))
            self.reports.append(compilation.report)
            return compilation.compile(gm, examples)

        with interpreted() as runtime:
            check_program(fn, inputs, backend, dynamic=dynamic)
        self.kernels = runtime.kernels

    @property
    def graphs(self):
        return [g for report in self.reports for g in report.graphs]

    def count(self, kind: str) -> int:
        return sum(len(g.kernels) for g in self.graphs if g.name == kind)

    def reasons(self) -> dict[str, str]:
        return {d.node: d.reason for g in self.graphs for d in g.declined if d.rule == "fuse"}


def rotary(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


SINGLE = {
    "chain": (lambda x: (x * 2 + 1).sin().relu(), [(5, 7)]),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (33,), w, b), [(6, 33), (33,), (33,)]),
    "rms norm": (lambda x, w: F.rms_norm(x, (33,), w), [(6, 33), (33,)]),
    "softmax": (lambda x: F.softmax(x, -1), [(6, 33)]),
    "log softmax": (lambda x: F.log_softmax(x * 2, -1), [(6, 33)]),
    "gelu": (F.gelu, [(6, 33)]),
    "rotary": (rotary, [(2, 5, 8), (5, 8), (5, 8)]),
    "residual, layer norm": (lambda x, y: F.layer_norm(x + y, (33,)), [(6, 33), (6, 33)]),
    "two results": (lambda x: (x.sin(), x.cos()), [(6, 5)]),
    "one input twice": (lambda x: x * x.t(), [(6, 6)]),
    "broadcast": (lambda x, y: x + y, [(6, 1), (1, 5)]),
    "through reshapes": (lambda x: (x.sin().reshape(4, 3, 5) * 2).reshape(12, 5).cos(), [(12, 5)]),
    "size 1": (lambda x: (x + 1).softmax(-1), [(1, 1)]),
    "0-dim": (lambda x: (x + 1).sin(), [()]),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", SINGLE)
def test_is_one_kernel(name, dynamic):
    if dynamic and name == "rotary":
        pytest.xfail("the strides of half of a symbolic dimension are not seen to be dense")
    fn, shapes = SINGLE[name]
    out = Outcome(fn, *(tensor(s, seed=k) for k, s in enumerate(shapes)), dynamic=dynamic)
    assert out.count("inference") == 1
    assert not out.reasons()


def test_cross_entropy_reads_the_logits_in_one_kernel():
    labels = torch.tensor([3, 0, -100, 6, 1, 1])
    out = Outcome(lambda x: F.cross_entropy(x, labels, reduction="none"), tensor((6, 11), requires_grad=True))
    rowwise = [k for k in out.kernels if k.cols and len(k.reductions) == 2]
    assert len(rowwise) == 1  # the other kernels of the forward pass see the labels only


def test_values_that_stay_inside_are_not_stored():
    out = Outcome(lambda x: (x * 2 + 1).sin(), tensor((5, 7)))
    (kernel,) = out.kernels
    assert [b.written for b in kernel.buffers] == [False, True]


def test_a_value_that_is_also_returned_is_stored():
    def fn(x):
        y = x * 2 + 1
        return y, y.sin()

    (kernel,) = Outcome(fn, tensor((5, 7))).kernels
    assert [b.written for b in kernel.buffers] == [False, True, True]


def test_a_product_between_two_chains_separates_them():
    out = Outcome(lambda x: (x.sin() @ x.cos().t()).relu() + 1, tensor((5, 7)))
    assert out.count("inference") == 2
    assert "no kernel rule for aten.mm.default" in out.reasons().values()


def test_a_cycle_is_not_closed():
    """The second chain needs the product of the first, so that the two cannot share a kernel."""

    def fn(x):
        y = x.sin()
        return y + (y @ y).cos()

    assert Outcome(fn, tensor((6, 6))).count("inference") == 2


def test_reductions_over_different_axes_are_kernels_of_their_own():
    out = Outcome(lambda x: x.sum(0) + x.sum(1), tensor((6, 6)))
    assert out.count("inference") == 2 or out.count("inference") == 3


@pytest.mark.parametrize(
    "fn, reason",
    [
        (lambda x: x.cumsum(0), "no kernel rule for aten.cumsum.default"),
        (lambda x: x.to(torch.complex64) * 2, "dtype torch.complex64"),
        (lambda x: x[:0] * 2, "an empty tensor"),
        (lambda x: x.to(torch.int64) % (x > -100).to(torch.int64), "integer division by a value that may be 0"),
    ],
)
def test_reasons(fn, reason):
    assert any(reason in r for r in Outcome(fn, tensor((5, 6), data="small-integers")).reasons().values())


def test_a_slice_of_a_reshaped_value_is_read_where_it_lies():
    out = Outcome(lambda x: torch.outer(x.amax(0)[:5], x.flatten()[:3]), tensor((16, 8)))
    assert all(a.size.is_Integer for k in out.kernels for a in k.rows)


def test_a_dynamic_size_that_was_found_to_be_1_broadcasts():
    Outcome(lambda x: torch.logaddexp(x, x[::3]), tensor((2, 3, 5), requires_grad=True), dynamic=True)


def test_a_symbolic_slice_start():
    out = Outcome(lambda x: torch.cat([x.sin(), x], 1).cos(), tensor((6, 4), requires_grad=True), dynamic=True)
    assert not [p.failure for g in out.graphs for p in g.passes if p.failure]


def test_writes_to_inputs_come_after_reads():
    def fn(x, y):
        z = x.sin()
        x.add_(y)
        return z, x * 2

    Outcome(fn, tensor((5, 4)), tensor((5, 4), seed=1))
