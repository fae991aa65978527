"""The backend function: its options, its ways to run, and what it does where something is missing."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import optpass.backend
from optpass.errors import CompilerMissing, ConfigError
from optpass.testing import check_program, tensor
from optpass.testing.runtimes import InterpretedRuntime, interpreted

pytestmark = pytest.mark.null


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def block(x, w):
    return F.gelu(F.layer_norm(x, (8,)) @ w).sum(-1), x * 2


def inputs():
    return [tensor((5, 8), requires_grad=True), tensor((8, 6), seed=1, requires_grad=True)]


def test_it_is_a_registered_backend():
    assert "optpass" in torch._dynamo.list_backends(exclude_tags=())


@pytest.mark.parametrize(
    "options", [{"execution": "reference"}, {"disable": ["fuse-regions"]}, {"verify": "numeric"}, {}]
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_every_way_to_run_is_right(options, dynamic):
    with interpreted():
        check_program(block, inputs(), options={"cache": False, **options}, dynamic=dynamic)


def test_unknown_options_are_errors():
    with pytest.raises(Exception, match="unknown") as caught:
        torch.compile(lambda x: x + 1, backend="optpass", options={"parrity": "eager"})(torch.ones(3))
    assert isinstance(caught.value.inner_exception, ConfigError)


def test_without_a_compiler_graphs_run_operator_by_operator(monkeypatch):
    class NoCompiler(InterpretedRuntime):
        def compiler(self):
            raise CompilerMissing("g++ is not there")

        def load_stored(self, *_):
            raise CompilerMissing("g++ is not there")

    runtime = NoCompiler()
    monkeypatch.setattr(optpass.backend, "runtime_for", lambda *_: runtime)
    optpass.backend._warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        check_program(block, inputs())
    assert sum("operator by operator" in str(w.message) for w in seen) == 1


def test_a_higher_order_operator_is_left_whole():
    def fn(x):
        return torch.utils.checkpoint.checkpoint(lambda x: x.sin().cos() * 2, x, use_reentrant=False)

    with interpreted():
        check_program(fn, [tensor((4, 5), requires_grad=True)], options={"cache": False})


def test_switches_of_grad_mode_and_autocast_inside_the_graph():
    def fn(x, w):
        with torch.no_grad():
            scale = x.amax() * 2
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
        return y.float() * scale

    with interpreted():
        check_program(fn, inputs(), options={"cache": False})


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x,
        lambda x: (x, x),
        lambda x: x.view(-1),
        lambda x: (x.t(), x.sin()),
        lambda x: x.detach(),
        lambda x: (3, None, x + 1, [x * 2]),
        lambda x: x.sin().view(-1)[2:],
        lambda x: x.add_(1).mul(2),
        lambda x: (x.mul_(2), x.sum()),
        lambda x: x.new_zeros(3),
    ],
)
def test_outputs_of_every_kind(fn):
    with interpreted():
        check_program(fn, [tensor((4, 5))], options={"cache": False})
