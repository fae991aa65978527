"""A run of kernels that one call executes: what a target with cheap calls (the CPU) builds its entry points from."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from optpass.codegen.expr import Expr, Symbol, floor_div
from optpass.codegen.ir import Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel call.

    ``buffers`` name, for each of the kernel's buffers in order, a parameter or scratch buffer of the segment; sizes are
    passed by symbol; ``scalars`` name the segment's scalars in the kernel's order.
    """

    kernel: str
    buffers: tuple[str, ...]
    scalars: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scratch:
    """A buffer that lives inside one segment only; ``size_bytes`` may hold size symbols."""

    name: str
    size_bytes: Expr


@dataclass(frozen=True, slots=True)
class Segment:
    """An entry point called as ``name(*tensors, *sizes, *scalars)``.

    Attributes:
        buffers: names of the tensors that it reads and writes, in call order.
        sizes, scalars: union of those of the kernels called, in call order.
        scratch: intermediates that no one outside sees.
        calls: kernels in execution order.
    """

    name: str
    buffers: tuple[str, ...]
    sizes: tuple[Symbol, ...]
    scalars: tuple[Scalar, ...]
    scratch: tuple[Scratch, ...]
    calls: tuple[Call, ...]

    @property
    def memory(self) -> str:
        """Name of the parameter in which the scratch buffers lie: bytes, aligned to a cache line."""
        return f"{self.name}_memory"

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensor parameters: the buffers and, where there are scratch buffers, their memory."""
        return (*self.buffers, self.memory) if self.scratch else self.buffers

    def place_scratch(self) -> tuple[dict[str, Expr], Expr]:
        """Byte offset of each scratch buffer, at cache lines, and the bytes needed in all.

        Buffers whose lifetimes (first to last call) do not meet share memory.
        """
        lines = {s.name: sympy.sympify(s.size_bytes) for s in self.scratch}
        uses: dict[str, list[int]] = {name: [] for name in lines}
        for t, call in enumerate(self.calls):
            for name in call.buffers:
                if name in uses:
                    uses[name].append(t)
        slots: list[Expr] = []
        free_from: list[int] = []
        slot_of: dict[str, int] = {}
        for name in sorted((n for n in lines if uses[n]), key=lambda n: uses[n][0]):
            free = [k for k, t in enumerate(free_from) if t < uses[name][0]]
            if free:
                k = max(free, key=lambda k: (slots[k] == lines[name], slots[k].is_Integer == lines[name].is_Integer))
                slots[k] = sympy.Max(slots[k], lines[name])
            else:
                k = len(slots)
                slots.append(lines[name])
                free_from.append(0)
            free_from[k] = uses[name][-1]
            slot_of[name] = k
        starts = [sympy.S.Zero]
        for size in slots:
            starts.append(starts[-1] + _whole_lines(size))
        return {name: starts[k] for name, k in slot_of.items()}, starts[-1]


def _whole_lines(size: Expr) -> Expr:
    return floor_div(size + 63, sympy.Integer(64)) * 64
