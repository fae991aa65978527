"""The options of `torch.compile(model, backend="optpass", options={...})`: one table, checked by name and by value."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from optpass.errors import ConfigError

__all__ = ["Options", "describe_options"]


def _one_of(*valid: str) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        if not isinstance(value, str) or value not in valid:
            raise ValueError(f"one of {', '.join(map(repr, valid))}{_did_you_mean(value, valid)}")
        return value

    convert.__doc__ = " \\| ".join(f"`{name}`" for name in valid)
    return convert


def _flag(value: Any) -> bool:
    """`True` \\| `False`"""
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def _count_or_none(value: Any) -> int | None:
    """an integer ≥ 0, or `None`"""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise ValueError("an integer of 0 or more, or None")
    return value


def _path_or_none(value: Any) -> str | None:
    """a folder, or `None`"""
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ValueError("a folder's path, or None")
    return str(os.fspath(value))


def _names(value: Any) -> tuple[str, ...]:
    """a list of names"""
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise ValueError("a list or tuple of names")
    return tuple(sorted(set(value)))


def _option(
    default: Any, doc: str, convert: Callable[[Any], Any], *, env: str | None = None, changes_code: bool = True
) -> Any:
    return field(default=default, metadata=dict(doc=doc, convert=convert, env=env, changes_code=changes_code))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Every choice that a user has, with its default. Values are plain and comparable, as Dynamo asks of options.

    Build it with `Options.parse`, which checks names and values and reads the environment; the constructor checks
    nothing. The precedence is: the `options` mapping, then the environment, then the default.
    """

    mode: str = _option(
        "default",
        "how much compile time to spend: `reduce-overhead` adds CUDA graphs, `max-autotune` measures every choice",
        _one_of("default", "reduce-overhead", "max-autotune"),
    )
    parity: str = _option(
        "fast",
        "`eager` keeps every rounding point and the order of random numbers of eager PyTorch",
        _one_of("fast", "eager"),
    )
    verify: str = _option(
        "meta",
        "check of each pass: nothing; shapes, strides and aliasing; also values of each rewrite; `strict` raises on a "
        "failure instead of rolling the rewrite back",
        _one_of("off", "meta", "numeric", "strict"),
        env="OPTPASS_VERIFY",
    )
    execution: str = _option(
        "compiled",
        "`reference` runs the rewritten graph operator by operator and builds no kernel",
        _one_of("compiled", "reference"),
    )
    disable: tuple[str, ...] = _option((), "passes that do not run", _names)
    cache: bool = _option(True, "keep built kernels and plans on disk between processes", _flag, changes_code=False)
    report: bool = _option(False, "print the compile report of each graph to standard error", _flag, changes_code=False)
    dump: str | None = _option(
        None,
        "folder for the graph before and after each pass, as runnable Python",
        _path_or_none,
        env="OPTPASS_DUMP",
        changes_code=False,
    )
    bisect_limit: int | None = _option(
        None,
        "apply the first so many rewrites of this process only; `optpass bisect` searches over it",
        _count_or_none,
        env="OPTPASS_BISECT_LIMIT",
    )

    @classmethod
    def parse(cls, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Options:
        """Check what `torch.compile` passes to a backend.

        Args:
            mode: the `mode=` argument; `None` when not given.
            options: the `options=` argument; `None` when not given.

        Raises:
            ConfigError: an unknown name, a value of a wrong kind, or a mode given twice with two values.

        >>> Options.parse(options={"parity": "eager"}).parity
        'eager'
        """
        given = dict(options or {})
        if mode is not None and given.setdefault("mode", mode) != mode:
            raise ConfigError(
                f"mode={mode!r} and options['mode']={given['mode']!r} contradict each other", hint="give one of them"
            )
        table = {f.name: f.metadata for f in fields(cls)}
        for name in given:
            if name not in table:
                raise ConfigError(
                    f"unknown option {name!r}{_did_you_mean(name, table)}", hint=f"valid options: {', '.join(table)}"
                )
        values = {}
        for name, entry in table.items():
            if name in given:
                values[name] = _converted(entry, given[name], f"options[{name!r}]")
            elif entry["env"] and os.environ.get(entry["env"]):
                values[name] = _converted(entry, os.environ[entry["env"]], f"environment variable {entry['env']}")
        return cls(**values)

    def fingerprint(self) -> str:
        """A stable text of every option that changes the generated code; part of each cache key."""
        return ";".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.metadata["changes_code"])


def describe_options() -> str:
    """The table of options as Markdown; `docs/options.md` holds exactly this text."""
    lines = [
        "# Options",
        "",
        'Given as `torch.compile(model, backend="optpass", options={...})`; a value there wins over the environment.',
        "",
        "| option | values | default | environment | meaning |",
        "|---|---|---|---|---|",
    ]
    for f in fields(Options):
        env = f"`{f.metadata['env']}`" if f.metadata["env"] else ""
        values = f.metadata["convert"].__doc__
        lines.append(f"| `{f.name}` | {values} | `{f.default!r}` | {env} | {f.metadata['doc']} |")
    return "\n".join(lines) + "\n"


def _converted(entry: Mapping[str, Any], value: Any, where: str) -> Any:
    try:
        return entry["convert"](value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where} is {value!r}", hint=str(error)) from None


def _did_you_mean(name: Any, valid: Any) -> str:
    close = difflib.get_close_matches(str(name), list(valid), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
