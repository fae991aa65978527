"""A run of kernels that one call executes: what a target with cheap calls (the CPU) builds its entry points from."""

from __future__ import annotations

from dataclasses import dataclass

from optpass.codegen.expr import Expr, Symbol
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
        buffers: names of the tensor parameters, in call order.
        sizes, scalars: union of those of the kernels called, in call order.
        scratch: intermediates that no one outside sees, placed by the printer with lifetimes in mind.
        calls: kernels in execution order.
    """

    name: str
    buffers: tuple[str, ...]
    sizes: tuple[Symbol, ...]
    scalars: tuple[Scalar, ...]
    scratch: tuple[Scratch, ...]
    calls: tuple[Call, ...]
