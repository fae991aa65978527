"""optpass: a graph-optimising `torch.compile` backend that is fast, explains itself and can be trusted."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optpass.backends.host_memory import release_memory
    from optpass.passes.registry import register_pass

__all__ = ["register_pass", "release_memory"]

_HOMES = {"register_pass": "optpass.passes.registry", "release_memory": "optpass.backends.host_memory"}


def __getattr__(name: str) -> Any:
    """Loads the public names on first use: importing them imports PyTorch's compiler, which takes seconds."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
