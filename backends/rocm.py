"""AMD GPUs: the same Triton kernels and launches as on CUDA, whose device type and driver names ROCm builds share."""

from __future__ import annotations

import torch

from optpass.autotune.arch import gpu_target
from optpass.backends.cuda import Launcher, build_kernels
from optpass.codegen.target import Target

__all__ = ["Launcher", "build_kernels", "rocm_target"]


def rocm_target(device_index: int) -> Target:
    """The target of an AMD card of this machine."""
    card = torch.cuda.get_device_properties(device_index)
    # ``gfx942:sramecc+:xnack-``: what follows the name are features that kernels do not depend on.
    arch = card.gcnArchName.split(":")[0]
    return gpu_target(arch, card.multi_processor_count, card.shared_memory_per_block)
