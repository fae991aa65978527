"""The error family of optpass: what failed, where in the user's source, and what to do next."""

from __future__ import annotations


class OptpassError(Exception):
    """Base of every error that optpass raises on its own account.

    Args:
        what: one sentence that names what failed.
        where: the user's source line or the graph node concerned, if known.
        hint: what the reader can do about it.
    """

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what, self.where, self.hint = what, where, hint
        parts = [what]
        if where:
            parts.append(f"  at: {where}")
        if hint:
            parts.append(f"  try: {hint}")
        super().__init__("\n".join(parts))


class OptpassWarning(UserWarning):
    """optpass went on in a slower way than it should have; the message says why and what to do."""


class ConfigError(OptpassError, ValueError):
    """An option, a mode or an environment variable has a name or a value that optpass does not know."""


class CaptureError(OptpassError):
    """The model's graph could not be captured or normalised."""


class VerifyError(OptpassError):
    """A pass returned a graph that breaks the contract of the graph that it was given."""


class PassError(OptpassError):
    """A pass is registered or ordered wrongly."""


class UnsupportedOp(OptpassError):
    """A target or a printer cannot express an operation; the node falls back to ATen."""


class CompileError(OptpassError):
    """A generated source did not build; `log` holds the compiler's output, `source` the text."""

    def __init__(self, what: str, *, source: str = "", log: str = "", hint: str | None = None) -> None:
        self.source, self.log = source, log
        super().__init__(f"{what}\n{log}" if log else what, hint=hint)


class CompilerMissing(CompileError):
    """No usable compiler was found on this machine."""


class ContractError(OptpassError):
    """A compiled graph returned outputs whose dtype, shape, strides or aliasing differ from the traced ones."""
