"""The check of a graph's first call: each kind of breach is seen, repaired, and seen again."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from optpass.contract import Outputs, checked_once
from optpass.errors import ContractError
from optpass.options import Options

pytestmark = pytest.mark.null
X = torch.arange(12.0).view(3, 4)


def errors(caplog):
    return [r for r in caplog.records if r.name.startswith("optpass")]


def outputs(fn):
    return Outputs.of(make_fx(fn, tracing_mode="fake")(X).graph)


BREACHES = {
    "dtype": (lambda x: (x * 2,), lambda x: (x * 2).double()),
    "strides": (lambda x: (x * 2,), lambda x: (x * 2).t().contiguous().t()),
    "memory": (lambda x: (x * 1,), lambda x: x),
    "memory of a view": (lambda x: (x * 1,), lambda x: x.view(3, 4)),
}


@pytest.mark.parametrize("kind", BREACHES)
def test_breaches(kind, caplog):
    promised, broken = BREACHES[kind]
    call = checked_once(lambda args: (broken(args[0]),), outputs(promised), Options.parse())
    (want,) = promised(X)
    for _ in range(2):
        (got,) = call([X])
        assert torch.equal(got, want) and got.dtype == want.dtype and got.stride() == want.stride()
        assert got.untyped_storage().data_ptr() != X.untyped_storage().data_ptr()
    assert len(errors(caplog)) == 2
    with pytest.raises(ContractError, match=r"output 0 \(mul"):
        checked_once(lambda args: (broken(args[0]),), outputs(promised), Options.parse(None, {"verify": "strict"}))([X])


def test_a_wrong_shape_is_no_matter_for_repair():
    call = checked_once(
        lambda args: (args[0].sum(0),), outputs(lambda x: (x * 2,)), Options.parse(None, {"verify": "strict"})
    )
    with pytest.raises(ContractError, match="shape"):
        call([X])


@pytest.mark.parametrize(
    "fn", [lambda x: (x * 2,), lambda x: (x.view(-1),), lambda x: (x.t(), x.sum(), x), lambda x: (x[1:],)]
)
def test_what_keeps_the_contract_is_called_directly_from_then_on(fn, caplog):
    calls = []
    inner = lambda args: (calls.append(len(args)), fn(*args))[1]
    call = checked_once(inner, outputs(fn), Options.parse(None, {"verify": "strict"}))
    for _ in range(3):
        call([X])
    assert calls == [1, 1, 1] and not errors(caplog)
    assert call._boxed_call


def test_verify_off_checks_nothing():
    broken = lambda args: (args[0],)
    call = checked_once(broken, outputs(lambda x: (x * 1,)), Options.parse(None, {"verify": "off"}))
    assert call is broken
