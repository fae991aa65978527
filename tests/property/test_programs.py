"""Random programs through the whole backend, against eager and float64."""

from __future__ import annotations

import contextlib
import logging
import os
import random

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

from optpass.testing import check_program, programs
from optpass.testing.runtimes import interpreted

SEED = int(os.environ.get("OPTPASS_SEED", "0")) or random.randrange(1 << 32)
ON_CI = settings(
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


@contextlib.contextmanager
def no_warnings():
    """A pass that was undone, or an output that had to be repaired, is a failure here."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("optpass")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    assert not messages, messages[0]


def check(program, *, dynamic=None, resize=None, exact=False, **options) -> None:
    note(f"OPTPASS_SEED={SEED} gives these examples again")
    torch._dynamo.reset()
    more = []
    if resize is not None and (other := program.resized(resize)).runs():
        more = [other.make_inputs()]
    with no_warnings():
        check_program(
            program.function(), program.make_inputs(), options={"cache": False, **options}, dynamic=dynamic,
            more_inputs=more, exact=exact, baseline="aot_eager",
        )  # fmt: skip


def in_the_interpreter(program, dynamic: bool, verify: str) -> None:
    with interpreted():
        if dynamic:
            check(program, dynamic=True, resize={3: 6, 5: 4, 16: 11, 33: 20}, verify=verify)
        else:
            check(program, verify=verify)


@pytest.mark.null
@seed(SEED)
@settings(ON_CI, max_examples=200)
@given(programs(), st.booleans())
def test_interpreted_kernels(program, dynamic):
    in_the_interpreter(program, dynamic, "meta")


@pytest.mark.null
@seed(SEED)
@settings(ON_CI, max_examples=25)
@given(programs(max_lines=6), st.booleans())
def test_numeric_verification_changes_nothing(program, dynamic):
    """Each rewrite is replayed, none is undone, and the results are right."""
    in_the_interpreter(program, dynamic, "strict")


@pytest.mark.null
@seed(SEED)
@settings(ON_CI, max_examples=80)
@given(
    programs(
        groups=("rounded",),
        mutations=False,
        gradients=False,
        floats=(torch.bfloat16, torch.float16),
        integers=(torch.bool,),
    )
)
def test_eager_parity_keeps_the_bits(program):
    with interpreted():
        check(program, parity="eager", exact=True)


@pytest.mark.cpu
@seed(SEED)
@settings(ON_CI, max_examples=60)
@given(programs(max_lines=14), st.booleans())
def test_compiled_kernels(program, dynamic):
    check(program, dynamic=True if dynamic else None)


@pytest.mark.triton
@seed(SEED)
@settings(ON_CI, max_examples=20)
@given(programs(max_lines=5, gradients=False))
def test_triton_kernels(program):
    from optpass.testing.triton_check import run_interpreted

    with interpreted(run_interpreted):
        check(program)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_many_interpreted_kernels(part):
    @seed(SEED + part)
    @settings(ON_CI, max_examples=400)
    @given(programs(), st.booleans())
    def run(program, dynamic):
        in_the_interpreter(program, dynamic, "meta")

    run()


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_many_compiled_kernels(part):
    @seed(SEED + part)
    @settings(ON_CI, max_examples=150)
    @given(programs(max_lines=14), st.booleans())
    def run(program, dynamic):
        check(program, dynamic=True if dynamic else None)

    run()
