"""Random tensor programs for Hypothesis, printed as short runnable Python."""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from optpass.testing.statements import GROUPS, MUTATIONS, SOURCES
from optpass.testing.tensors import LAYOUTS, Input, tensor
from optpass.torch_private import storage_id

#: Values with more elements than this are not made.
MAX_ELEMENTS = 3000

FLOATS = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int8, torch.int16, torch.bool)
#: What eager raises on arguments that do not fit.
EAGER_ERRORS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ZeroDivisionError)
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)


@dataclass(frozen=True)
class RandomProgram:
    """A function as text, with its inputs.

    Attributes:
        inputs: by parameter name.
        lines: statements, each on one line.
        outputs: names of the returned values.
    """

    inputs: dict[str, Input]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def source(self) -> str:
        body = [*self.lines, f"return {', '.join(self.outputs)}{',' if len(self.outputs) == 1 else ''}"]
        return f"def program({', '.join(self.inputs)}):\n" + "".join(f"    {line}\n" for line in body)

    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        """The function, compiled anew: Dynamo keeps no memory of an earlier one."""
        file = f"<random program {next(_numbers)}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(True), file)
        scope: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.source, file, "exec"), scope)
        return scope["program"]

    def make_inputs(self) -> list[Tensor]:
        scope: dict[str, Any] = {"torch": torch, "tensor": tensor}
        for name, spec in self.inputs.items():
            scope[name] = eval(spec.code(), scope)
        return [scope[name] for name in self.inputs]

    def resized(self, sizes: dict[int, int]) -> RandomProgram:
        """The same program on inputs whose dimensions of one size have another one."""
        move = lambda shape: tuple(sizes.get(n, n) for n in shape)
        return replace(self, inputs={k: replace(v, shape=move(v.shape)) for k, v in self.inputs.items()})

    def without(self, dropped: set[int]) -> RandomProgram:
        """The program less some lines, what reads their values, and inputs and outputs that are gone then."""
        gone: set[str] = set()
        lines = []
        for k, line in enumerate(self.lines):
            if k in dropped or gone & _names(line):
                gone |= set(re.findall(r"^(v\d+) = ", line))
            else:
                lines.append(line)
        outputs = tuple(o for o in self.outputs if o not in gone)
        made = [m[1] for line in lines if (m := re.match(r"(v\d+) = ", line))]
        outputs = outputs or (made[-1:] and (made[-1],)) or (next(iter(self.inputs)),)
        return replace(self, lines=tuple(lines), outputs=outputs)

    def runs(self) -> bool:
        """Whether eager accepts the program."""
        try:
            self.function()(*self.make_inputs())
        except EAGER_ERRORS:
            return False
        return True

    def __repr__(self) -> str:
        makes = "".join(f"{name} = {spec.code()}\n" for name, spec in self.inputs.items())
        return (
            "\n# --- runnable ---\nimport torch\nimport torch.nn.functional as F\n"
            "from optpass.testing import check_program, tensor\n\n\n"
            f"{self.source}\n\n{makes}check_program(program, [{', '.join(self.inputs)}])\n"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


_numbers = itertools.count()


def _names(line: str) -> set[str]:
    return set(re.findall(r"\b[vx]\d+\b", line))


@st.composite
def programs(
    draw: st.DrawFn,
    max_lines: int = 10,
    groups: Sequence[str] = tuple(g for g in GROUPS if g != "rounded"),
    mutations: bool = True,
    gradients: bool = True,
    floats: Sequence[torch.dtype] = FLOATS,
    integers: Sequence[torch.dtype] = INTEGERS,
) -> RandomProgram:
    """Programs of a few operations on small tensors, whose values are mostly finite in eager.

    Args:
        max_lines: the most statements.
        groups: kinds of operations, of `statements.GROUPS`.
        mutations: also write into inputs and intermediates.
        gradients: let floating-point inputs require gradients, now and then.
        floats, integers: dtypes of inputs.
    """
    rng = draw(st.randoms(use_true_random=True))
    program = _Maker(rng, groups, mutations, gradients, floats, integers).make(max_lines)
    # A draw of 0 removes a line or makes an input plain: rare, but what shrinking strives for.
    is_kept = lambda: draw(st.integers(0, 24)) > 0
    smaller = program.without({k for k in range(len(program.lines)) if not is_kept()})
    plain = {k: replace(v, layout="contiguous", data="normal") for k, v in program.inputs.items() if not is_kept()}
    smaller = replace(smaller, inputs={**program.inputs, **plain})
    return smaller if smaller.runs() else program


class _Maker:
    """Grows a program line by line; each is tried in eager, and one that raises is not kept."""

    def __init__(self, rng: Random, groups, mutations: bool, gradients: bool, floats, integers) -> None:
        self.rng, self.floats, self.integers = rng, floats, integers
        self.mutations, self.gradients = mutations, gradients
        self.statements = [s for g in groups for s in GROUPS[g]] + (MUTATIONS if mutations else [])
        self.scope: dict[str, Any] = {"torch": torch, "F": F, "tensor": tensor}
        self.values: dict[str, Tensor] = {}

    def pick(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(options)

    def make(self, max_lines: int) -> RandomProgram:
        inputs = self.make_inputs()
        lines: list[str] = []
        for k in range(self.rng.randint(2, max_lines)):
            tries = (self.statement(f"v{k}") for _ in range(4))
            if (line := next((t for t in tries if t is not None and self.accept(t, f"v{k}")), None)) is not None:
                lines.append(line)
        made = [n for n in self.values if n not in inputs]
        unread = [n for n in made if not any(n in _names(line.partition(" = ")[2]) for line in lines)]
        outputs = unread[-4:] or [self.pick(list(inputs))]
        outputs += self.rng.choices(list(self.values), k=self.pick((0, 0, 1, 2)))
        return RandomProgram(inputs, tuple(lines), tuple(outputs))

    def make_inputs(self) -> dict[str, Input]:
        base = [self.pick(SIZES) for _ in range(self.pick((0, 1, 2, 2, 3, 3, 4)))]
        if self.rng.randint(0, 19) == 0 and base:
            base[self.rng.randint(0, len(base) - 1)] = 0
        while torch.Size(base).numel() > MAX_ELEMENTS // 2:
            base[base.index(max(base))] = 3
        inputs: dict[str, Input] = {}
        with_gradients = self.gradients and (self.rng.random() < 0.5)
        for k in range(self.rng.randint(1, 4)):
            name = f"x{k}"
            spec = self.make_input(k, base, with_gradients)
            if k and self.mutations and self.rng.randint(0, 14) == 0:
                spec = self.shared(list(inputs)) or spec
            inputs[name] = spec
            self.scope[name] = self.values[name] = eval(spec.code(), self.scope)
        return inputs

    def make_input(self, k: int, base: list[int], with_gradients: bool) -> Input:
        is_float = k == 0 or self.rng.randint(0, 3) > 0
        dtype = self.pick(self.floats if is_float else self.integers)
        shape = list(base)
        if k:  # something that broadcasts with the first input, most of the time
            shape = [n if self.rng.randint(0, 4) else 1 for n in shape]
            shape = shape[self.rng.randint(0, len(shape)) if (self.rng.random() < 0.5) else 0 :]
            if self.rng.randint(0, 7) == 0 and len(shape) >= 2:
                shape[-1], shape[-2] = shape[-2], shape[-1]
        layout = self.pick(["contiguous", "contiguous", *LAYOUTS])
        data = self.pick(("normal", "normal", "normal", "small-integers", "special")) if is_float else "normal"
        grad = with_gradients and is_float
        return Input(tuple(shape), dtype, layout, data, seed=k, requires_grad=grad)

    def shared(self, names: list[str]) -> Input | None:
        """A view of an earlier input, which needs no gradient."""
        name = self.pick(names)
        if self.values[name].requires_grad or not self.values[name].dim():
            return None
        code = self.pick([name, f"{name}[1:]", f"{name}.transpose(0, -1)", f"{name}.detach()"])
        return Input(tuple(eval(code, self.scope).shape), of=code)

    def statement(self, name: str) -> str | None:
        if self.rng.randint(0, 11) == 0:
            template = self.pick(SOURCES)
        else:
            template = self.pick(self.statements)
        text = _Slots(self).fill(template)
        return text if text is None or template in MUTATIONS else f"{name} = {text}"

    def accept(self, line: str, name: str) -> bool:
        if not line.startswith(f"{name} = ") and self.overlaps(re.search(r"\w+", line)[0]):
            return False
        try:
            exec(line, self.scope)
        except EAGER_ERRORS:
            return False
        if not line.startswith(f"{name} = "):
            return True
        value = self.scope[name]
        if value.numel() > MAX_ELEMENTS or _is_lost(value):
            return False
        self.values[name] = value
        return True

    def overlaps(self, name: str) -> bool:
        """Whether elements of the value's memory are shared: functional graphs cannot write to that."""
        mine = storage_id(self.values[name])
        return any(storage_id(v) == mine and 0 in v.stride() for v in self.values.values())


def _is_lost(value: Tensor) -> bool:
    """Whether most of a value says nothing any more."""
    if not value.is_floating_point() or value.numel() == 0:
        return False
    tame = value.detach().abs() < 1e4
    return bool(tame.double().mean() < 0.5)


class _Slots:
    """Fills the slots of a statement: see `statements`."""

    def __init__(self, maker: _Maker) -> None:
        self.maker, self.leader, self.first = maker, "", torch.empty(0)

    def fill(self, template: str) -> str | None:
        try:
            if (leader := re.search(r"\{([afibw])\}", template)) is not None:
                self.leader = self.tensor(leader[1])
                self.first = self.maker.values[self.leader]
            return re.sub(r"\{(\w+)\}", lambda m: self.slot(m[1]), template)
        except LookupError:
            return None

    def slot(self, kind: str) -> str:
        pick, rng = self.maker.pick, self.maker.rng
        match kind:
            case "a" | "f" | "i" | "b" | "w":
                leader, self.leader = self.leader, ""
                return leader or self.tensor(kind)
            case "x" | "y" | "m" | "j":
                return self.operand(kind)
            case "k":
                return pick(("2", "-1", "0.5", "3", "-1.5", "1", "0"))
            case "n":
                return pick(("2", "3", "-2", "5"))
            case "bit":
                return pick(("1", "2", "5", "7"))
            case "d" | "e":
                rank = self.rank(1)
                return str(rng.randint(-rank, rank - 1))
            case "p":
                return ", ".join(map(str, rng.sample(range(self.rank(1)), self.rank(1))))
            case "ds":
                rank = self.rank(1)
                return str(sorted(rng.sample(range(rank), rng.randint(1, rank))))
            case "keep":
                return pick(("", ", keepdim=True"))
            case "dtype":
                return str(pick((*FLOATS, *INTEGERS)))
            case "s":
                return pick(("0", "1", "2", "-1", "-2"))
            case "step":
                return pick(("1", "2", "3"))
            case "last":
                return str(self.first.shape[-1] if self.rank(1) else 1)
            case "zero":
                return str(self.first.shape[0] if self.rank(1) else 1)
            case "half":
                size = self.first.shape[-1] if self.rank(1) else 0
                factors = [n for n in range(1, size + 1) if size % n == 0]
                return str(pick(factors)) if factors else self._none()
        raise AssertionError(kind)

    def _none(self) -> str:
        raise LookupError

    def rank(self, least: int) -> int:
        if self.first.dim() < least:
            raise LookupError
        return self.first.dim()

    def tensor(self, kind: str) -> str:
        fits = {
            "a": lambda t: True,
            "f": lambda t: t.is_floating_point(),
            "i": lambda t: not t.is_floating_point(),
            "b": lambda t: t.dtype == torch.bool,
            "w": lambda t: not t.is_floating_point() and t.dtype != torch.bool,
        }[kind]
        return self.choose([n for n, t in self.maker.values.items() if fits(t)])

    def operand(self, kind: str) -> str:
        """A tensor that broadcasts with the first one: any, of its dtype (y), a mask (m); or one of integers (j)."""
        first = self.first
        fits = {
            "x": lambda t: True,
            "y": lambda t: t.dtype == first.dtype,
            "m": lambda t: t.dtype == torch.bool,
            "j": lambda t: t.dtype in (torch.int64, torch.int32),
        }[kind]
        names = [n for n, t in self.maker.values.items() if fits(t)]
        if kind != "j":
            names = [n for n in names if _broadcasts(self.maker.values[n].shape, first.shape)]
        return self.choose(names)

    def choose(self, names: list[str]) -> str:
        if not names:
            raise LookupError
        # Late values are likelier, so that programs grow deep.
        return names[-1 - min(self.maker.rng.randrange(len(names)) for _ in range(2))]


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(m == n or m == 1 or n == 1 for m, n in zip(reversed(a), reversed(b)))
