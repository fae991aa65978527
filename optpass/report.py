"""What a compilation did, as plain data: passes and their times, rewrites, refusals, fallbacks and kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.table import Table

__all__ = ["CompileReport", "Declined", "Fallback", "GraphReport", "KernelRecord", "PassRecord", "Rewrite"]


@dataclass(slots=True)
class Rewrite:
    """One application of a rule.

    Attributes:
        number: position among all rewrites of the process, the number that `bisect_limit` counts.
        stage, pass_name, rule: who did it.
        nodes: names of the graph nodes that it was applied to.
        bytes_before, bytes_after, flops_before, flops_after: estimated work of the nodes concerned.
        source: the user's line, `path:line in function: text`, or `""`.
        rolled_back: why it was undone, or `None`.
    """

    number: int
    stage: str
    pass_name: str
    rule: str
    nodes: tuple[str, ...]
    source: str
    bytes_before: int = 0
    bytes_after: int = 0
    flops_before: int = 0
    flops_after: int = 0
    rolled_back: str | None = None


@dataclass(frozen=True, slots=True)
class Declined:
    """A candidate that a rule looked at and left alone: `reason` is the predicate that failed ("why not")."""

    stage: str
    pass_name: str
    rule: str
    node: str
    reason: str
    source: str


@dataclass(slots=True)
class PassRecord:
    """One run of one pass; `failure` says why its work was undone, `None` if it stands."""

    stage: str
    name: str
    milliseconds: float
    rewrites: int
    changed: bool
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Fallback:
    """A node that runs as an ATen call because no kernel of ours expresses it."""

    node: str
    reason: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One call of a generated kernel.

    Attributes:
        ops: names of the operations fused into it.
        bytes: what it reads and writes, each tensor once.
        flops: what it computes.
        bytes_apart: what the same operations would move one by one.
    """

    name: str
    ops: tuple[str, ...]
    bytes: int
    flops: int
    bytes_apart: int


@dataclass(slots=True)
class GraphReport:
    """What happened to one graph (`forward`, `backward`, `inference`, …) of a compilation.

    `texts` holds what was made, by file name: the program, the kernels' IR and their source.
    """

    name: str
    passes: list[PassRecord] = field(default_factory=list)
    rewrites: list[Rewrite] = field(default_factory=list)
    declined: list[Declined] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    kernels: list[KernelRecord] = field(default_factory=list)
    timings_ms: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict, repr=False)

    def add_time(self, phase: str, milliseconds: float) -> None:
        """Add to the time of a phase that is no pass: `capture`, `partition`, `lower`, `build`, …"""
        self.timings_ms[phase] = self.timings_ms.get(phase, 0.0) + milliseconds

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and strings, without the texts."""
        plain = asdict(self)
        del plain["texts"]
        return plain

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Take over what an earlier process recorded of the same graph, as `to_dict` gave it; times stay this one's."""
        for name, kind in _RECORDS.items():
            rows = ({k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for row in stored[name])
            getattr(self, name).extend(kind(**row) for row in rows)

    def __rich__(self) -> Group:
        parts: list[Any] = [f"[bold]{self.name}[/bold]"]
        parts.append(
            _table(
                "passes",
                ("stage", "pass", "ms", "rewrites", "undone because"),
                [(p.stage, p.name, f"{p.milliseconds:.1f}", str(p.rewrites), p.failure or "") for p in self.passes],
            )
        )
        if self.timings_ms:
            parts.append(_table("other phases", ("phase", "ms"), [(k, f"{v:.1f}") for k, v in self.timings_ms.items()]))
        if self.rewrites:
            parts.append(
                _table(
                    "rewrites",
                    ("#", "rule", "nodes", "bytes", "source"),
                    [
                        (
                            str(r.number),
                            r.rule,
                            ", ".join(r.nodes),
                            f"{r.bytes_before:,} → {r.bytes_after:,}",
                            f"undone: {r.rolled_back}" if r.rolled_back else r.source,
                        )
                        for r in self.rewrites
                    ],
                )
            )
        if self.declined:
            parts.append(
                _table(
                    "why not",
                    ("rule", "node", "reason", "source"),
                    [(d.rule, d.node, d.reason, d.source) for d in self.declined],
                )
            )
        if self.kernels:
            parts.append(
                _table(
                    "kernels",
                    ("kernel", "operations", "bytes", "bytes one by one", "FLOPs"),
                    [
                        (k.name, ", ".join(k.ops), f"{k.bytes:,}", f"{k.bytes_apart:,}", f"{k.flops:,}")
                        for k in self.kernels
                    ],
                )
            )
        if self.fallbacks:
            parts.append(
                _table(
                    "fallbacks", ("node", "reason", "source"), [(f.node, f.reason, f.source) for f in self.fallbacks]
                )
            )
        return Group(*parts)


_RECORDS = {
    "passes": PassRecord, "rewrites": Rewrite, "declined": Declined, "fallbacks": Fallback, "kernels": KernelRecord,
}  # fmt: skip


@dataclass(slots=True)
class CompileReport:
    """All graphs of one `torch.compile` call, in the order in which they were compiled."""

    graphs: list[GraphReport] = field(default_factory=list)

    def graph(self, name: str) -> GraphReport:
        """Open the report of a further graph."""
        self.graphs.append(report := GraphReport(name))
        return report

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and strings, ready for JSON."""
        return {"graphs": [graph.to_dict() for graph in self.graphs]}

    def __rich__(self) -> Group:
        return Group(*self.graphs)

    def __str__(self) -> str:
        console = Console(width=140, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get()


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    return table
