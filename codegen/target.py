"""What a printer and a pass may know of the machine that they write for: a plain record, no device query."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class Target:
    """Capabilities of one architecture.

    Attributes:
        kind: printer family: ``cpp`` or ``triton``.
        device: PyTorch's device type that runs it: ``cpu``, ``cuda`` (also ROCm).
        arch: ``x86-64-avx512``, ``sm_90``, ``gfx942``, …
        units: cores, or multiprocessors.
        vector_bytes: widest vector register or memory access of one lane.
        row_bytes: bytes of one row that stay on chip between passes over it (L2 share of a core; registers of a block).
        max_threads: threads of one block; 1 on a CPU.
        shared_bytes: shared memory that a block may use; 0 on a CPU.
        unsupported: dtypes that kernels of this target cannot read or write.
    """

    kind: str
    device: str
    arch: str
    units: int
    vector_bytes: int
    row_bytes: int
    max_threads: int = 1
    shared_bytes: int = 0
    unsupported: frozenset[torch.dtype] = frozenset()

    def fingerprint(self) -> str:
        """A text that is the same in every process (the order of a set is not)."""
        return f"{replace(self, unsupported=frozenset())} {sorted(map(str, self.unsupported))}"
