"""What lowering reads from an FX node: its value's shape, strides and dtype, as sympy expressions."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch import Tensor
from torch.fx import Node

from optpass.codegen.expr import Expr
from optpass.errors import UnsupportedOp
from optpass.torch_private import statically_known_true


def to_expr(value: int | torch.SymInt) -> Expr:
    """An int or SymInt as a sympy expression.

    A compound expression that tracing has found to be 1 says 1 (``(s0 + 2)//3`` where that was broadcast): index maps
    compare sizes with 1.
    """
    if not isinstance(value, torch.SymInt):
        return sympy.Integer(value)
    expr = value.node.expr
    return sympy.S.One if not expr.is_Atom and statically_known_true(value == 1) else expr


def value_of(node: Node) -> object:
    """The recorded fake value of a node."""
    return node.meta.get("val")


def is_tensor(node: object) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), Tensor)


def shape_of(node: Node) -> tuple[Expr, ...]:
    return tuple(to_expr(s) for s in node.meta["val"].shape)


def strides_of(value: Tensor) -> tuple[Expr, ...]:
    return tuple(to_expr(s) for s in value.stride())


def dtype_of(node: Node) -> torch.dtype:
    return node.meta["val"].dtype


def normal_dim(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


def normal_dims(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Non-negative dimensions; all of them for None or (). A 0-dim tensor has none, though dim 0 and -1 may name it."""
    if rank == 0:
        return ()
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(rank))
    return tuple(normal_dim(d, rank) for d in ([dims] if isinstance(dims, int) else dims))


def static(value: object, what: str) -> int:
    """A plain int.

    Raises:
        UnsupportedOp: the argument is symbolic or computed at run time.
    """
    if not isinstance(value, int):
        raise UnsupportedOp(f"{what} is not a plain number")
    return value


def argument(node: Node, position: int, name: str, default: object = None) -> object:
    """An operator's argument by position or keyword."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def scalar_expr(value: object) -> Expr | None:
    """The expression of an int, a SymInt or a node that holds one; None for anything else, or what no printer knows."""
    if isinstance(value, Node):
        value = value.meta.get("val")
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        return None
    expr = to_expr(value)
    return expr if is_printable(expr) else None


_PRINTABLE = {"Add", "Mul", "Pow", "PowByNatural", "FloorDiv", "CleanDiv", "Mod", "PythonMod", "Max", "Min"}


def is_printable(expr: Expr) -> bool:
    """Whether every printer can spell an integer expression."""
    if expr.is_Integer or expr.is_Symbol:
        return True
    if expr.is_Rational:
        return True  # a coefficient of a quotient that is known to be whole
    return expr.func.__name__ in _PRINTABLE and all(is_printable(a) for a in expr.args)
