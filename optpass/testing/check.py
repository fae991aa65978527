"""Differential checks: a compiled function against eager in the same dtype and in float64, contract included."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optpass.testing.rounding import Perturbed, double_precision
from optpass.torch_private import storage_id, tree_leaves

#: Runs of the eager function with every rounding disturbed; their spread is the error that its arithmetic may have.
RUNS = 6
#: A kernel may err by so many times the spread: its functions are a few units off where the disturbance is one.
SLACK = 8.0


class Mismatch(AssertionError):
    """The compiled function does not do what eager does."""


def check_program(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    backend: str | Callable[..., Any] = "optpass",
    *,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    more_inputs: Sequence[Sequence[Any]] = (),
    gradients: bool = True,
    exact: bool = False,
    baseline: str | None = None,
    compile: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
) -> None:
    """Compiles ``fn`` and checks a call of it against eager.

    Equal to eager must be: dtypes, shapes, strides, ``requires_grad``, which outputs and inputs share memory, and every
    value that involves no floating-point rounding. Rounded values, of outputs, mutated inputs and gradients alike, must
    be as close to the float64 result as eager is, twice, or as the function's own conditioning allows: within ``SLACK``
    times the spread of eager runs in which each operation's result is moved by one unit in the last place. A value on
    which the runs disagree (a comparison of nearly equal numbers) is thus not held against the compiler, and one that
    they agree on must be right to the last places.

    Args:
        fn: takes the inputs as positional arguments; returns tensors in any nesting. It draws no random numbers.
        inputs: tensors (left as they are) and plain values.
        backend: of `torch.compile`.
        options, dynamic: of `torch.compile`.
        more_inputs: further calls of the same compiled function, of other sizes.
        gradients: compare the gradients of inputs that require them.
        exact: ask for the same bits (``parity="eager"`` on pointwise functions).
        baseline: a backend whose failures are forgiven: with ``aot_eager`` those of PyTorch's own tracing.
        compile: makes the compiled function instead of `torch.compile`.

    Raises:
        Mismatch: a difference; the message says which value and where.
    """
    if compile is None:
        kwargs = {"options": dict(options)} if options else {}
        compile = lambda f: torch.compile(f, backend=backend, dynamic=dynamic, **kwargs)
    compiled = compile(fn)
    for number, case in enumerate([inputs, *more_inputs]):
        try:
            _check_call(fn, compiled, case, gradients, exact)
        except Exception as error:
            if baseline is not None and _fails(fn, case, baseline, dynamic, gradients):
                continue
            if isinstance(error, Mismatch):
                raise Mismatch(f"call {number}: {error}") from None
            raise


def _fails(fn: Callable, inputs: Sequence[Any], backend: str, dynamic: bool | None, gradients: bool) -> bool:
    try:
        _check_call(fn, torch.compile(fn, backend=backend, dynamic=dynamic), inputs, gradients, False)
    except Exception:
        return True
    return False


def _check_call(fn: Callable, compiled: Callable, inputs: Sequence[Any], gradients: bool, exact: bool) -> None:
    eager = _Call(fn, inputs, gradients, is_trial=True)
    if gradients and not eager.has_gradients:
        eager = _Call(fn, inputs, False)
    got = _Call(compiled, inputs, gradients and eager.has_gradients)
    _compare_contract(got, eager)
    if exact:
        for name, value in eager.values.items():
            _compare_bits(name, got.values[name], value)
        return
    wide = _wide(inputs)
    with double_precision():
        exactly = _Call(fn, wide, eager.has_gradients)
    runs = []
    for seed in range(RUNS):
        with Perturbed(seed):
            runs.append(_Call(fn, inputs, eager.has_gradients))
    for name, value in eager.values.items():
        _compare_values(name, got.values[name], value, exactly.values.get(name), [r.values.get(name) for r in runs])


class _Call:
    """One call on copies of the inputs: ``values`` holds outputs, inputs after the call, and gradients, by name."""

    def __init__(self, fn: Callable[..., Any], inputs: Sequence[Any], gradients: bool, is_trial: bool = False) -> None:
        self.is_trial, self.inputs = is_trial, _copy(inputs)
        leaves = [x for x in self.inputs if isinstance(x, Tensor) and x.requires_grad]
        with torch.set_grad_enabled(gradients or not leaves):
            self.outputs = tree_leaves(fn(*self.inputs))
        self.has_gradients = False
        self.values = {f"output {k}": x for k, x in enumerate(self.outputs)}
        self.values |= {f"input {k} after the call": x for k, x in enumerate(self.inputs)}
        found = self._gradients(leaves) if gradients and leaves else {}
        self.values = {k: x.detach().clone() if isinstance(x, Tensor) else x for k, x in self.values.items()} | found

    def _gradients(self, leaves: list[Tensor]) -> dict[str, Any]:
        sources = [x for x in self.outputs if isinstance(x, Tensor) and x.requires_grad]
        if not sources:
            return {}
        seeds = [_cotangent(x, k) for k, x in enumerate(sources)]
        try:
            grads = torch.autograd.grad(sources, leaves, seeds, allow_unused=True)
        except RuntimeError:
            if self.is_trial:  # what eager itself cannot differentiate is compared without gradients
                return {}
            raise
        self.has_gradients = True
        return {f"gradient {k}": g for k, g in enumerate(grads)}


def _cotangent(x: Tensor, k: int) -> Tensor:
    """The same numbers in every dtype: multiples of 1/16."""
    generator = torch.Generator().manual_seed(k)
    return (torch.randint(-16, 17, x.shape, generator=generator) / 16).to(x.dtype)


def _copy(inputs: Sequence[Any]) -> list[Any]:
    """Copies that share memory with each other as the originals do."""
    return copy.deepcopy(list(inputs))


def _wide(inputs: Sequence[Any]) -> list[Any]:
    """Floating-point tensors in float64, with their layouts and with memory shared as before."""
    storages: dict[object, Tensor] = {}

    def wide(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
        memory = storages.setdefault((storage_id(x), x.dtype), whole.double())
        return memory.as_strided(x.shape, x.stride(), x.storage_offset()).detach().requires_grad_(x.requires_grad)

    return [wide(x) for x in _copy(inputs)]


def _compare_contract(got: _Call, eager: _Call) -> None:
    if got.values.keys() != eager.values.keys():
        raise Mismatch(f"there are {sorted(got.values)} instead of {sorted(eager.values)}")
    if _sharing(got) != _sharing(eager):
        raise Mismatch(f"inputs and outputs share memory as {_sharing(got)} instead of {_sharing(eager)}")
    for k, (a, b) in enumerate(zip(got.outputs, eager.outputs)):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            if a.requires_grad != b.requires_grad:
                raise Mismatch(f"output {k} has requires_grad={a.requires_grad} instead of {b.requires_grad}")
            if _strides(a) != _strides(b):
                raise Mismatch(f"output {k} has strides {a.stride()} instead of {b.stride()} (sizes {tuple(b.shape)})")
            of_input = any(isinstance(x, Tensor) and storage_id(x) == storage_id(b) for x in eager.inputs)
            if of_input and b.numel() and a.storage_offset() != b.storage_offset():
                raise Mismatch(f"output {k} begins at {a.storage_offset()} of its storage, not {b.storage_offset()}")
    for name, b in eager.values.items():
        a = got.values[name]
        if isinstance(a, Tensor) != isinstance(b, Tensor):
            raise Mismatch(f"{name} is {type(a).__name__} instead of {type(b).__name__}")
        if not isinstance(b, Tensor):
            if a != b:
                raise Mismatch(f"{name} is {a} instead of {b}")
        elif (a.dtype, a.shape) != (b.dtype, b.shape):
            raise Mismatch(f"{name} is {a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}")


def _strides(x: Tensor) -> list[int]:
    """Strides that matter: those of dimensions with several elements."""
    return [s for s, n in zip(x.stride(), x.shape) if n != 1] if x.numel() else []


def _sharing(call: _Call) -> list[int]:
    """For each input and output the first one with the same memory."""
    ids = [storage_id(x) for x in (*call.inputs, *call.outputs) if isinstance(x, Tensor) and x.numel()]
    return [ids.index(i) for i in ids]


def _compare_bits(name: str, got: Any, want: Any) -> None:
    if not isinstance(want, Tensor):
        return
    same = (got == want) | (got.isnan() & want.isnan()) if want.is_floating_point() else got == want
    if want.is_floating_point():
        same &= (got.signbit() == want.signbit()) | want.isnan()
    _raise_unless(same, name, got, want, "")


def _compare_values(name: str, got: Any, eager: Any, exactly: Any, runs: list[Any]) -> None:
    if not isinstance(eager, Tensor):
        return
    runs = [r for r in runs if isinstance(r, Tensor) and r.shape == eager.shape]
    if not eager.is_floating_point():
        unsure = torch.zeros(eager.shape, dtype=torch.bool)
        for r in runs:
            unsure |= r != eager
        if isinstance(exactly, Tensor) and exactly.shape == eager.shape:
            unsure |= exactly != eager
        _raise_unless((got == eager) | unsure, name, got, eager, "")
        return
    got64, eager64 = got.double(), eager.double()
    reference = exactly.double() if isinstance(exactly, Tensor) and exactly.shape == eager.shape else eager64
    spread = torch.zeros(eager.shape, dtype=torch.float64)
    for r in runs:
        spread = torch.maximum(spread, _distance(r.double(), eager64))
    allowed = SLACK * spread + 4 * torch.finfo(eager.dtype).eps * eager64.abs().nan_to_num(0, 0, 0)
    close = _distance(got64, eager64) <= allowed
    close |= _distance(got64, reference) <= torch.maximum(allowed, 2 * _distance(eager64, reference))
    _raise_unless(close, name, got, eager, ", float64 gives {}, allowed error {}", reference, allowed)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """|a - b|; 0 for equal infinities and two NaNs, infinite where only one is NaN."""
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(nan=torch.inf, posinf=torch.inf))


def _raise_unless(good: Tensor, name: str, got: Tensor, want: Tensor, more: str, *details: Tensor) -> None:
    if good.all():
        return
    bad = ~good
    where = tuple(bad.nonzero()[0].tolist())
    note = more.format(*(d[where].item() for d in details))
    raise Mismatch(
        f"{name} at {where} is {got[where].item()} instead of {want[where].item()}{note} "
        f"({int(bad.sum())} of {bad.numel()} elements are wrong)"
    )
