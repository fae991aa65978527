"""Places of values: each axis lies in one dimension of a value, or the kernel would compute a diagonal."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.cpu


def outer(x):
    y = x.exp()
    return y[:, None] * y[None, :], (y[:, None] + y[None, :]).sum(1), y.cumsum(0)


def transposed(x):
    y = x[:, None] + torch.arange(x.shape[0])
    return y * y.t(), (y + y.t()).sum(1), y.cumsum(0)


@pytest.mark.parametrize("program", [outer, transposed])
def test_a_value_met_along_two_dimensions_is_no_diagonal(program):
    x = torch.randn(7)
    compiled = torch.compile(program, backend="optpass")
    for got, want in zip(compiled(x), program(x), strict=True):
        torch.testing.assert_close(got, want)
