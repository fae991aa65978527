"""Results as tables: in the terminal, and as Markdown between two marks of a page."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"

Row = dict[str, Any]


class Sheet(NamedTuple):
    """A table as text."""

    title: str
    head: list[str]
    rows: list[list[str]]


def sheets(results: Sequence[Row]) -> list[Sheet]:
    """Times with their ratios and means, and what the speed costs: memory, error, compile time."""
    backends = list(dict.fromkeys(r["backend"] for r in results))
    table = {workload: {} for workload in dict.fromkeys(r["workload"] for r in results)}
    for r in results:
        table[r["workload"]][r["backend"]] = r
    made = [
        _times(table, backends),
        _sheet("Peak memory of a step, MiB", table, backends, lambda r: _format(r["peak_bytes"], ".1f", scale=2**-20)),
        _sheet("Largest relative error against float64", table, backends, lambda r: _format(r["error"], ".1e")),
    ]
    if timed := [b for b in backends if any(r["cold_s"] for r in results if r["backend"] == b)]:
        cell = lambda r: f"{_format(r['cold_s'], '.1f')} / {_format(r['warm_s'], '.1f')}"
        made.append(_sheet("Compile time in a fresh process, cold / warm caches, s", table, timed, cell))
    return made


def show(results: Sequence[Row]) -> None:
    console = Console()
    console.width = max(console.width, 120)
    for sheet in sheets(results):
        table = Table(*sheet.head, title=sheet.title, title_justify="left")
        table.columns[0].no_wrap = True
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
    for r in results:
        if r["failure"]:
            console.print(f"{r['workload']} under {r['backend']}: {r['failure']}", style="red", markup=False)


def markdown(document: dict[str, Any]) -> str:
    """The tables of a JSON document of `run`, headed by the machine."""
    machine = ", ".join(f"{key} {value}" for key, value in document["machine"].items() if value)
    parts = [f"Measured on: {machine}."]
    for sheet in sheets(document["results"]):
        lines = [sheet.head, ["---"] * len(sheet.head), *sheet.rows]
        parts.append(f"### {sheet.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


def update(page: Path, text: str) -> None:
    """Replace what stands between the marks of a page."""
    old = page.read_text()
    new, count = re.subn(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{text}\n{END}", old, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{page} needs the marks {BEGIN} and {END} once, in this order")
    page.write_text(new)


def _times(table: dict[str, dict[str, Row]], backends: list[str]) -> Sheet:
    bases = [base for base in ("eager", "inductor") if base in backends]
    pairs = [(b, base) for b in backends for base in bases if b not in ("eager", base)]
    head = ["workload", *(f"{b} ms" for b in backends), *(f"{b} vs {base}" for b, base in pairs)]
    rows = []
    groups: dict[str, list[list[float | None]]] = {}
    for workload, row in table.items():
        ratios = [_ratio(row, backend, base) for backend, base in pairs]
        group = next(iter(row.values()))["group"]
        groups.setdefault(group, []).append(ratios)
        times = [_format(_value(row, b, "milliseconds"), ".3f") for b in backends]
        rows.append([workload, *times, *(_format(r, ".2f", "×") for r in ratios)])
    if len(groups) > 1:
        groups["all"] = [ratios for group in list(groups.values()) for ratios in group]
    for group, ratios in groups.items():
        means = [_format(geometric_mean(column), ".2f", "×") for column in zip(*ratios)]
        rows.append([f"geometric mean, {group} ({len(ratios)})", *[""] * len(backends), *means])
    return Sheet("Time of a step; a ratio above 1 is faster than the backend it is compared with", head, rows)


def _sheet(title: str, table: dict[str, dict[str, Row]], backends: list[str], cell: Callable[[Row], str]) -> Sheet:
    """One cell for each workload and backend."""
    rows = [[workload, *(cell(row[b]) if b in row else "" for b in backends)] for workload, row in table.items()]
    return Sheet(title, ["workload", *backends], rows)


def geometric_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value]
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if known else None


def _value(row: dict[str, Row], backend: str, name: str) -> float | None:
    return row[backend][name] if backend in row else None


def _ratio(row: dict[str, Row], backend: str, base: str) -> float | None:
    mine, theirs = (_value(row, b, "milliseconds") for b in (backend, base))
    return theirs / mine if mine and theirs else None


def _format(value: float | None, spec: str, suffix: str = "", scale: float = 1.0) -> str:
    return "–" if value is None else f"{value * scale:{spec}}{suffix}"
