"""What is known of GPU architectures without a device at hand.

A `Target` of a card that is present comes from its driver (`backends.cuda.cuda_target`); this table serves builds
ahead of time and tests. Sources: [C] CUDA C++ Programming Guide, "Technical Specifications per Compute Capability";
[A100], [H100], [B200] NVIDIA's architecture whitepapers and data sheets of those cards; [M] AMD, "AMD CDNA 3
Architecture" whitepaper and the Instinct MI300X data sheet; [T] `supported_fp8_dtypes` in Triton's back ends.
"""

from __future__ import annotations

import torch

from optpass.codegen.target import Target
from optpass.errors import UnsupportedOp

#: Half of the 64 K 32-bit registers that a block may use [C]; the other half is for addresses and temporaries.
REGISTER_ROW_BYTES = 128 * 1024
#: 16 bytes is the widest access of one thread [C].
VECTOR_BYTES = 16

_FNUZ = frozenset({torch.float8_e4m3fnuz, torch.float8_e5m2fnuz})

#: Multiprocessors (of the largest card sold), and shared memory that one block may ask for.
_CARDS = {
    "sm_80": (108, 163 * 1024),  # [A100] 108 SMs; [C] 163 KB
    "sm_90": (132, 227 * 1024),  # [H100] SXM5: 132 SMs; [C] 227 KB
    "sm_100": (148, 227 * 1024),  # [B200] 148 SMs; [C] 227 KB
    "gfx942": (304, 64 * 1024),  # [M] 304 compute units, 64 KB of local data share each
}


def target(arch: str) -> Target:
    """The Triton target of an architecture in the table.

    Raises:
        UnsupportedOp: the table has no such architecture.
    """
    if arch not in _CARDS:
        raise UnsupportedOp(f"no table entry for {arch}", hint=f"known: {', '.join(_CARDS)}")
    return gpu_target(arch, *_CARDS[arch])


def gpu_target(arch: str, units: int, shared_bytes: int) -> Target:
    """The Triton target of a card with ``units`` multiprocessors."""
    return Target(
        kind="triton",
        device="cuda",
        arch=arch,
        units=units,
        vector_bytes=VECTOR_BYTES,
        row_bytes=REGISTER_ROW_BYTES,
        max_threads=1024,  # [C], [M]
        shared_bytes=shared_bytes,
        unsupported=_unsupported(arch),
    )


def _unsupported(arch: str) -> frozenset[torch.dtype]:
    # [T] E4M3 needs sm_89; the fnuz variants are AMD's.
    if arch.startswith("sm_") and int(arch[3:]) < 89:
        return _FNUZ | {torch.float8_e4m3fn}
    return _FNUZ
