"""Every private PyTorch name that optpass uses, in one place.

Private names move between releases; the supported range is torch 2.11 to 2.14. Nothing else in the project imports a
name with a leading underscore from torch, so a new release is checked by reading this page.
"""

from __future__ import annotations

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._library.utils import is_impure as is_impure_op
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    ShapeEnv,
    guard_or_false,
    has_free_unbacked_symbols,
    optimization_hint,
    statically_known_true,
)
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod
from torch.utils.flop_counter import flop_registry

__all__ = [
    "FakeTensorMode",
    "FloorDiv",
    "HigherOrderOperator",
    "Mod",
    "OpOverload",
    "PythonMod",
    "ShapeEnv",
    "detect_fake_mode",
    "enable_python_dispatcher",
    "flop_registry",
    "graph_codegen",
    "guard_or_false",
    "has_free_unbacked_symbols",
    "is_impure_op",
    "optimization_hint",
    "statically_known_true",
    "storage_id",
    "tree_leaves",
]


def storage_id(tensor: torch.Tensor) -> int:
    """A number that two live tensors share exactly when they share their storage; works for fake tensors too."""
    return tensor.untyped_storage()._cdata


def graph_codegen(graph: torch.fx.Graph) -> torch.fx.graph.CodeGen:
    """The object that prints the graph's calling convention; a copy of the graph needs the same one."""
    return graph._codegen
