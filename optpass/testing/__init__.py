"""Tools to test compilers and passes with: random programs, differential checks, Triton kernels without a GPU.

Example::

    from hypothesis import given
    from optpass.testing import check_program, programs

    @given(programs())
    def test_my_pass(program):
        check_program(program.function(), program.make_inputs())

Hypothesis is needed for `programs` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optpass.testing.check import Mismatch, check_program
from optpass.testing.tensors import Input, tensor

if TYPE_CHECKING:
    from optpass.testing.graphs import RandomProgram, programs

__all__ = ["Input", "Mismatch", "RandomProgram", "check_program", "programs", "tensor"]


def __getattr__(name: str) -> Any:
    if name in ("RandomProgram", "programs"):
        from optpass.testing import graphs

        return getattr(graphs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
