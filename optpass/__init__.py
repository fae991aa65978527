"""optpass: a graph-optimising `torch.compile` backend that is fast, explains itself and can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optpass.passes.registry import register_pass

__all__ = ["register_pass"]


def __getattr__(name: str) -> Any:
    """Loads the public names on first use: importing them imports PyTorch's compiler, which takes seconds."""
    if name == "register_pass":
        from optpass.passes.registry import register_pass

        return register_pass
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
