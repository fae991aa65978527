"""Every private PyTorch name that optpass uses, in one place.

Private names move between releases; the supported range is torch 2.11 to 2.14. Nothing else in the project imports a
name with a leading underscore from torch, so a new release is checked by reading this page.
"""

from __future__ import annotations

import sympy
import torch
from torch._decomp import get_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext, detect_fake_mode
from torch._library.utils import is_impure as is_impure_op
from torch._ops import HigherOrderOperator, OpOverload
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    ShapeEnv,
    guard_or_false,
    has_free_unbacked_symbols,
    statically_known_true,
)
from torch.fx.traceback import preserve_node_meta
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod
from torch.utils._sympy.printers import PythonPrinter
from torch.utils.flop_counter import flop_registry

__all__ = [
    "MODE_SWITCHES",
    "FakeTensorMode",
    "FloorDiv",
    "HigherOrderOperator",
    "Mod",
    "OpOverload",
    "PythonMod",
    "ShapeEnv",
    "TorchDispatchMode",
    "TracingContext",
    "aot_module_simplified",
    "current_raw_stream",
    "detect_fake_mode",
    "disable_current_modes",
    "empty_strided_cpu",
    "empty_strided_cuda",
    "enable_python_dispatcher",
    "flop_registry",
    "forward_returns",
    "functorch_config",
    "get_decompositions",
    "graph_codegen",
    "guard_or_false",
    "has_free_unbacked_symbols",
    "is_copy_on_write",
    "is_impure_op",
    "make_fx",
    "min_cut_rematerialization_partition",
    "optimization_hint",
    "preserve_node_meta",
    "python_text",
    "reinterpret",
    "statically_known_true",
    "storage_id",
    "storage_owners",
    "suggest_memory_format",
    "tree_leaves",
    "tree_map",
]


#: Functions that switch a mode for the nodes after them in Dynamo's graph.
MODE_SWITCHES = frozenset({torch._C._set_grad_enabled, _enter_autocast, _exit_autocast})


def optimization_hint(size: int | torch.SymInt, fallback: int) -> int:
    """A likely value of a size, for estimates; adds no guard. (torch 2.13 has one of its own, 2.11 has not.)"""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return fallback if hint is None else int(hint)


def python_text(expr: sympy.Expr) -> str:
    """Python source that evaluates a size expression, any of PyTorch's sympy functions included."""
    return PythonPrinter().doprint(expr)


def storage_id(tensor: torch.Tensor) -> int:
    """A number that two live tensors share exactly when they share their storage; works for fake tensors too."""
    return tensor.untyped_storage()._cdata


def storage_owners(storage: torch.UntypedStorage) -> int:
    """How many owners a storage has, its Python object included: tensors, views, saved tensors."""
    return torch._C._storage_Use_Count(storage._cdata)


def is_copy_on_write(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory may be shared with that of another storage until one of them is written."""
    return torch._C._is_cow_tensor(tensor)


def graph_codegen(graph: torch.fx.Graph) -> torch.fx.graph.CodeGen:
    """The object that prints the graph's calling convention; a copy of the graph needs the same one."""
    return graph._codegen


def forward_returns() -> int | None:
    """How many leading outputs of the forward graph being compiled are the user's; the rest is saved for backward."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return getattr(metadata, "num_forward_returns", None)


def empty_strided_cpu(size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised CPU memory; replaced below by PyTorch's own fast path, which skips the dispatcher."""
    return torch.empty_strided(size, strides, dtype=dtype)


def empty_strided_cuda(size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised memory of the current CUDA device; replaced below likewise."""
    return torch.empty_strided(size, strides, dtype=dtype, device="cuda")


empty_strided_cpu = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", empty_strided_cpu)
empty_strided_cuda = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", empty_strided_cuda)


def current_raw_stream(device: int) -> int:
    """The driver's handle of a GPU's current stream; replaced below by PyTorch's own fast path where it was built."""
    return torch.cuda.current_stream(device).cuda_stream


current_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", current_raw_stream)


def reinterpret(tensor: torch.Tensor, size: tuple[int, ...], strides: tuple[int, ...], offset: int) -> torch.Tensor:
    """Another header over a tensor's memory, ``offset`` elements further on, without a view relation for autograd."""
    fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return fresh.set_(tensor.untyped_storage(), tensor.storage_offset() + offset, size, strides)


reinterpret = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", reinterpret)
