"""PyTorch's own operator samples, for every operator that kernels claim: the dtypes and corner cases of its database.

Many samples share one graph, so that a build covers an operator in a dtype; ATen runs the rest of the graph.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from optpass.codegen import views
from optpass.codegen.emit import SUPPORTED
from optpass.codegen.lower import CASTS, REDUCTIONS, STRUCTURAL
from optpass.codegen.pointwise import RULES
from optpass.decompositions import table
from optpass.errors import OptpassError
from optpass.testing import Mismatch, check_program
from optpass.testing.runtimes import interpreted

#: Samples in one graph; a larger graph spares builds, a smaller one tells failures apart.
BATCH = 24
#: Operators whose result is left open by PyTorch, or drawn at random.
OPEN = re.compile("empty|rand|dropout|bernoulli|multinomial|normal$|exponential|cauchy|geometric|uniform|rrelu|resize")
#: Functions of the database that PyTorch itself makes of claimed operators.
MADE_OF = re.compile(
    r"nn\.functional\.(layer_norm|group_norm|batch_norm|rms_norm|nll_loss|cross_entropy|prelu|logsigmoid|softsign|relu6"
    r"|selu|l1_loss|tanhshrink|normalize|cosine_similarity|pairwise_distance|softmin|linear|one_hot)|split|chunk|unbind"
    r"|narrow|movedim|roll|flip|vstack|hstack|tile|repeat|take_along_dim|index_put|aminmax|diag|__r|true_divide|bfloat16"
    r"|float|half|double|bool|byte|int|long|addcm|nan_to_num|isfinite|trapezoid|cdist|dist|diff|outer|einsum"
)


def claimed() -> set[str]:
    """Names of the operators that kernels compute, as a whole or in pieces."""
    overloads = [*RULES, *CASTS, *STRUCTURAL, *REDUCTIONS, *views._PULL, *table("fast")]
    return {o._schema.name.partition("::")[2].strip("_") for o in overloads if hasattr(o, "_schema")}


def operators() -> list[Any]:
    """Their entries in the database, and those of functions that are made of them."""
    names = claimed()
    plain = lambda op: {op.name.split(".")[-1], op.aten_name or "", (op.variant_test_name or "")}
    return [op for op in op_db if (plain(op) & names or MADE_OF.match(op.name)) and not OPEN.search(op.name)]


def samples(op: Any, dtype: torch.dtype, gradients: bool) -> list[Any]:
    torch.manual_seed(0)
    try:
        return list(op.sample_inputs("cpu", dtype, requires_grad=gradients))
    except (RuntimeError, TypeError, NotImplementedError, ValueError):
        return []


def program(op: Any, batch: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
    """A function of all the tensors of some samples, and these."""
    leaves, spec = tree_flatten([(s.input, s.args, s.kwargs) for s in batch])
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def run(*tensors: torch.Tensor) -> list[Any]:
        filled = list(leaves)
        for place, t in zip(places, tensors):
            filled[place] = t
        return [op.op(x, *args, **kwargs) for x, args, kwargs in tree_unflatten(filled, spec)]

    return run, [leaves[k].detach().requires_grad_(leaves[k].requires_grad) for k in places]


def runs(op: Any, sample: Any) -> bool:
    try:
        out = tree_flatten(op.op(sample.input, *sample.args, **sample.kwargs))[0]
    except Exception:
        return False
    return any(isinstance(x, torch.Tensor) for x in out)


def check(op: Any, batch: list[Any], gradients: bool) -> None:
    torch._dynamo.reset()
    fn, tensors = program(op, batch)
    check_program(fn, tensors, gradients=gradients, options={"cache": False}, baseline="aot_eager")


def failures(op: Any, dtype: torch.dtype, gradients: bool, limit: int | None) -> Iterator[str]:
    batch = [s for s in samples(op, dtype, gradients) if runs(op, s)]
    if limit is not None:
        batch = random.Random(0).sample(batch, min(limit, len(batch)))
    for some in (batch[k : k + BATCH] for k in range(0, len(batch), BATCH)):
        try:
            check(op, list(some), gradients)
        except (Mismatch, OptpassError, RuntimeError, TypeError, IndexError) as whole:
            for sample in some:  # one by one, to name the guilty
                try:
                    check(op, [sample], gradients)
                except Exception as error:
                    yield f"{op.full_name} {dtype}: {error}\n{sample}"
                    break
            else:
                yield f"{op.full_name} {dtype}: only together: {whole}"


def dtypes_of(op: Any) -> list[torch.dtype]:
    return sorted(op.supported_dtypes("cpu") & SUPPORTED, key=str)


OPERATORS = [op for op in operators() if dtypes_of(op)]
IDS = [op.full_name for op in OPERATORS]


def test_the_list_covers_the_rules():
    assert len(OPERATORS) > 200


@pytest.mark.null
@pytest.mark.parametrize("op", OPERATORS, ids=IDS)
def test_a_few_samples(op):
    """One dtype of each operator, another one from one operator to the next; the kernels are interpreted."""
    choices = dtypes_of(op)
    dtype = choices[IDS.index(op.full_name) % len(choices)]
    with interpreted():
        assert not list(failures(op, dtype, False, limit=3))


@pytest.mark.soak
@pytest.mark.parametrize("op", OPERATORS, ids=IDS)
def test_all_dtypes(op):
    with interpreted():
        found = [f for dtype in dtypes_of(op) for f in failures(op, dtype, False, limit=BATCH)]
    assert not found, "\n\n".join(found)


@pytest.mark.soak
@pytest.mark.parametrize("op", OPERATORS, ids=IDS)
def test_compiled_kernels(op):
    wanted = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    found = [f for dtype in wanted if dtype in dtypes_of(op) for f in failures(op, dtype, False, limit=2 * BATCH)]
    assert not found, "\n\n".join(found)


@pytest.mark.soak
@pytest.mark.parametrize("op", [op for op in OPERATORS if op.supports_autograd], ids=lambda op: op.full_name)
def test_gradients(op):
    with interpreted():
        found = [f for dtype in (torch.float32, torch.bfloat16) if dtype in dtypes_of(op)
                 for f in failures(op, dtype, True, limit=BATCH)]  # fmt: skip
    assert not found, "\n\n".join(found)
