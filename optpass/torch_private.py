"""Every private PyTorch name that optpass uses, in one place.

Private names move between releases; the supported range is torch 2.11 to 2.14. Nothing else in the project imports a
name with a leading underscore from torch, so a new release is checked by reading this page.
"""

from __future__ import annotations

from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

__all__ = ["FloorDiv", "Mod", "PythonMod"]
