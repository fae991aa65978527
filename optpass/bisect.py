"""Which rewrite breaks a program: binary search over the number of rewrites that are applied."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optpass.errors import OptpassError

__all__ = ["Guilty", "bisect"]

NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Guilty:
    """The first rewrite with which the program fails.

    Attributes:
        number: its number, the smallest failing `bisect_limit`.
        record: its entry in `rewrites.json`: stage, pass_name, rule, nodes, source, …
        runs: how often the program ran.
    """

    number: int
    record: dict[str, Any]
    runs: int

    def __str__(self) -> str:
        record = self.record
        lines = [
            f"rewrite {self.number} is the first with which the program fails ({self.runs} runs)",
            f"  rule:   {record['rule']}, of pass {record['pass_name']} in stage {record['stage']}",
            f"  nodes:  {', '.join(record['nodes'])}",
            f"  source: {record['source'] or 'unknown'}",
            f"  try:    options={{'disable': [{record['pass_name']!r}]}}",
        ]
        return "\n".join(lines)


def bisect(command: Sequence[str], say: Callable[[str], None] = lambda _: None) -> Guilty:
    """Find the rewrite that makes a command fail.

    Args:
        command: a program and its arguments; it must end with status 0 exactly when all is well, and do the same work
            in each run.
        say: called with a line on each run.

    Raises:
        OptpassError: the command fails without rewrites, or does not fail with all of them.
    """
    with tempfile.TemporaryDirectory(prefix="optpass-bisect-") as folder:
        search = _Search(command, Path(folder), say)
        if not search.passes(0):
            raise OptpassError(
                "the program fails without any rewrite", hint="the fault lies elsewhere: run it in eager mode"
            )
        if search.passes(NO_LIMIT):
            raise OptpassError(
                "the program does not fail with all rewrites", hint="give a command that fails with status ≠ 0"
            )
        good, bad = 0, max(search.rewrites(), default=0)
        if bad == 0:
            raise OptpassError(
                "the program fails, but no rewrite was recorded",
                hint="the script must not set options['dump'] or options['bisect_limit'] itself",
            )
        while bad - good > 1:
            middle = (good + bad) // 2
            if search.passes(middle):
                good = middle
            else:
                bad = middle
        record = search.rewrites().get(bad)
        if record is None:
            raise OptpassError(f"rewrite {bad} differs from run to run", hint="make the program deterministic")
        return Guilty(bad, record, search.runs)


class _Search:
    def __init__(self, command: Sequence[str], folder: Path, say: Callable[[str], None]) -> None:
        self._command, self._folder, self._say = command, folder, say
        self._failed_dump: Path | None = None
        self.runs = 0

    def passes(self, limit: int) -> bool:
        """Run with the first `limit` rewrites only; whether it went well."""
        dump = self._folder / str(self.runs)
        environment = {**os.environ, "OPTPASS_BISECT_LIMIT": str(limit), "OPTPASS_DUMP": str(dump)}
        run = subprocess.run(self._command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.runs += 1
        well = run.returncode == 0
        if not well:
            self._failed_dump = dump
        shown = "all" if limit == NO_LIMIT else f"the first {limit}"
        self._say(f"run {self.runs}: {shown} rewrites: {'passes' if well else f'fails with status {run.returncode}'}")
        return well

    def rewrites(self) -> dict[int, dict[str, Any]]:
        """The rewrites of the last failing run, by number."""
        files = sorted(self._failed_dump.glob("graph_*/rewrites.json")) if self._failed_dump else []
        records = [record for file in files for record in json.loads(file.read_text(encoding="utf-8"))["rewrites"]]
        return {record["number"]: record for record in records}
