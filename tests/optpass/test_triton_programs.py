"""Whole programs through the backend, with Triton kernels run under Triton's interpreter, against eager."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import optpass.backend
from optpass.autotune.arch import target
from optpass.execute import bind
from optpass.program import build_program
from optpass.testing.triton_check import run_interpreted

pytestmark = pytest.mark.triton


class InterpretedRuntime:
    """CPU tensors, but the programs, kernels and tiles of an H100."""

    def __init__(self) -> None:
        self.target = dataclasses.replace(target("sm_90"), device="cpu")
        self.launched = 0

    def compiler(self) -> str:
        return "interpreter"

    def load_stored(self, key, make, report):
        return self.load(make(), report)

    def load(self, gm, report):
        program = build_program(gm, segmented=False, compiled=True)
        return bind(program, {f"launch_{k.name}": self.launcher(k) for k in program.kernels})

    def launcher(self, kernel):
        names = [b.name for b in kernel.buffers], kernel.sizes, [s.name for s in kernel.scalars]

        def launch(*args) -> None:
            self.launched += 1
            rest = iter(args)
            run_interpreted(kernel, *({name: next(rest) for name in group} for group in names))

        return launch


@pytest.fixture
def runtime(monkeypatch):
    torch.compiler.reset()
    runtime = InterpretedRuntime()
    monkeypatch.setattr(optpass.backend, "runtime_for", lambda *_: runtime)
    return runtime


def attention(q, k, v):
    scores = (q @ k.transpose(-1, -2) * 0.1).masked_fill(torch.ones(33, 33, dtype=torch.bool).triu(1), -torch.inf)
    return (F.softmax(scores, -1) @ v).transpose(1, 2).reshape(2, 33, -1)


def folds(x):
    return x.argmax(-1), x.max(-1).values, x.amin(0), x.std(1), x.prod(1), x.logsumexp(0), x.mean()


PROGRAMS = {
    "softmax": (lambda x: F.softmax(x * 2 + 1, -1), [(17, 300)]),
    "layer norm, gelu": (lambda x, w, b: F.gelu(F.layer_norm(x, (64,), w, b)), [(9, 5, 64), (64,), (64,)]),
    "rms norm, swish": (lambda x, w: F.rms_norm(x, (64,), w) * F.silu(x), [(9, 64), (64,)]),
    "batch norm": (lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)), [(4, 6, 7, 7), (6,), (6,)]),
    "attention": (attention, [(2, 3, 33, 16)] * 3),
    "transpose": (lambda x, y: x.transpose(1, 2).contiguous() + y, [(3, 40, 50), (3, 50, 40)]),
    "cat, pad, flip": (lambda x, y: F.pad(torch.cat([x, y], 1), (1, 2)).flip(0) * 2, [(5, 6), (5, 9)]),
    "folds": (folds, [(12, 37)]),
    "huber": (F.huber_loss, [(50, 3), (50, 3)]),
    "squared mean": (lambda x: (x * x).gt(0.5).float().mean() + (x * x).mean(), [(100, 130)]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_forward_and_backward(runtime, name: str, dynamic: bool):
    function, shapes = PROGRAMS[name]
    torch.manual_seed(0)
    inputs = [torch.randn(s, requires_grad=True) for s in shapes]
    twins = [x.detach().clone().requires_grad_() for x in inputs]
    expected = function(*inputs)
    actual = torch.compile(function, backend=optpass.backend.optpass, dynamic=dynamic)(*twins)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    if isinstance(expected, torch.Tensor):
        gradient = torch.randn_like(expected)
        expected.backward(gradient)
        actual.backward(gradient)
        for x, twin in zip(inputs, twins):
            torch.testing.assert_close(twin.grad, x.grad, rtol=1e-3, atol=1e-4)
    assert runtime.launched


def test_cross_entropy_of_embeddings(runtime):
    def function(i, w, t):
        return F.cross_entropy(F.layer_norm(F.embedding(i, w), (32,)) @ w.t(), t)

    index, weight, labels = torch.randint(0, 50, (20,)), torch.randn(50, 32), torch.randint(0, 50, (20,))
    actual = torch.compile(function, backend=optpass.backend.optpass)(index, weight, labels)
    torch.testing.assert_close(actual, function(index, weight, labels))
    assert runtime.launched


def test_integers_and_dropout(runtime):
    def function(x, y):
        return (x // 3) % 5, x << 2, (x > 3).sum(1), F.dropout(y, 0.5).ne(0).float().mean()

    x, y = torch.randint(-50, 50, (11, 30)), torch.randn(64, 64)
    *actual, kept = torch.compile(function, backend=optpass.backend.optpass)(x, y)
    *expected, _ = function(x, y)
    torch.testing.assert_close(actual, expected)
    # 4096 draws: five standard deviations of the share that is kept.
    assert abs(kept - 0.5) < 5 * 0.5 / 64
