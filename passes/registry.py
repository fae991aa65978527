"""How passes from outside join: the decorator `optpass.register_pass` and the entry points `optpass.passes`."""

from __future__ import annotations

import functools
import importlib.metadata
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.fx import GraphModule

from optpass.errors import PassError
from optpass.passes.base import Pass, PassContext, Stage

__all__ = ["Registration", "load_entry_points", "register_pass", "registrations", "unregister_pass"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registration:
    """A pass from outside and its place: after and before which passes of its stage."""

    pass_: Pass
    stage: Stage
    after: tuple[str, ...]
    before: tuple[str, ...]


_registered: dict[str, Registration] = {}


class FunctionPass(Pass):
    """A plain function as a pass; its whole run counts as one rewrite, so that it can be bisected and undone."""

    def __init__(self, name: str, function: Callable[[GraphModule, PassContext], None]) -> None:
        self.name = name  # type: ignore[misc]
        self.function = function

    def run(self, gm: GraphModule, ctx: PassContext) -> None:
        if ctx.apply(self.name):
            self.function(gm, ctx)


def register_pass(
    *, stage: Stage | str, after: str | Iterable[str] = (), before: str | Iterable[str] = (), name: str | None = None
) -> Callable[[T], T]:
    """Add a pass to the pipeline: a `Pass` subclass that is built without arguments, or a function `(gm, ctx) -> None`.

    Args:
        stage: the stage that it runs in, a `Stage` or its value.
        after, before: names of passes of that stage; without either it runs at the stage's end.
        name: of a function, by default its own with dashes; a class states its own.

    Raises:
        PassError: the name is taken, or the stage is unknown. Unknown names in `after` and `before` are reported when
            the pipeline is next built, because the passes that they name may be registered later.

    >>> @register_pass(stage="tensor", after="canonicalise")
    ... def count_nodes(gm, ctx):
    ...     print(len(gm.graph.nodes))
    """
    try:
        stage = Stage(stage)
    except ValueError:
        raise PassError(f"unknown stage {stage!r}", hint=f"one of {', '.join(Stage)}") from None

    def decorate(target: T) -> T:
        given: Any = target
        if isinstance(given, type) and issubclass(given, Pass):
            pass_: Pass = given()
        else:
            pass_ = FunctionPass(name or given.__name__.replace("_", "-"), given)
        if pass_.name in _registered or pass_.name in _builtin_names():
            raise PassError(f"a pass named {pass_.name!r} exists already", hint="give the new one another name")
        _registered[pass_.name] = Registration(pass_, stage, _names(after), _names(before))
        return target

    return decorate


def unregister_pass(name: str) -> None:
    """Take a registered pass out again."""
    if _registered.pop(name, None) is None:
        raise PassError(f"no registered pass is named {name!r}")


def registrations() -> tuple[Registration, ...]:
    """The passes from outside, in the order of registration."""
    load_entry_points()
    return tuple(_registered.values())


@functools.cache
def load_entry_points() -> None:
    """Import what installed distributions list under `optpass.passes`, once; importing registers their passes."""
    for entry_point in importlib.metadata.entry_points(group="optpass.passes"):
        try:
            entry_point.load()
        except Exception as error:
            warnings.warn(
                f"optpass: the passes of entry point {entry_point.name!r} are left out, it failed to load: {error!r}",
                stacklevel=2,
            )


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _builtin_names() -> set[str]:
    from optpass.passes.pipeline import DEFAULT  # the list imports the passes, which import this package

    return {pass_.name for passes in DEFAULT.values() for pass_ in passes}
