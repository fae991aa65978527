"""Dumps: a folder for each compiled graph, with the graph before and after each pass as programs that run."""

from __future__ import annotations

import difflib
import json
import os
import tempfile
import warnings
from pathlib import Path

from torch.fx import GraphModule

from optpass.options import Options
from optpass.passes.program_text import program_text
from optpass.report import GraphReport

__all__ = ["Dump", "GraphDump", "open_dump"]


def open_dump(options: Options) -> Dump | None:
    """The dump that the options ask for."""
    return Dump(Path(options.dump)) if options.dump else None


class Dump:
    """A folder that holds `graph_0_forward`, `graph_1_backward`, …; several processes may write to it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def graph(self, kind: str) -> GraphDump:
        """A new sub-folder for a graph; `kind` is `forward`, `backward`, `inference`, …"""
        number = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            taken = [path.name.split("_")[1] for path in self.folder.glob("graph_*_*")]
            number = 1 + max(map(int, filter(str.isdecimal, taken)), default=-1)
            while True:
                try:
                    (folder := self.folder / f"graph_{number}_{kind}").mkdir()
                    return GraphDump(folder)
                except FileExistsError:  # another process was first
                    number += 1
        except OSError as error:
            dump = GraphDump(self.folder / f"graph_{number}_{kind}")
            dump.give_up(error)
            return dump


class GraphDump:
    """The dump of one graph. A failure to write costs one warning and the rest of this dump, never the compilation.

    Files: `000_capture.py`; for each pass that changed the graph `NNN_<stage>_<pass>.before.py`, `.after.py` and
    `.diff`; `rewrites.json`, the report with every rewrite applied or declined.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self._writable = True

    def render(self, gm: GraphModule) -> str:
        """The graph as a program."""
        try:
            return program_text(gm, self.folder.name)
        except Exception as error:  # a graph that has no text must compile all the same
            self.give_up(error)
            return ""

    def write_capture(self, gm: GraphModule) -> None:
        """The graph as it came, on the first call."""
        if self._count == 0:
            self.write("000_capture.py", self.render(gm))
            self._count = 1

    def write_pass(self, stage: str, name: str, before: str, after: str) -> None:
        """What a pass changed."""
        base = f"{self._count:03}_{stage}_{name}"
        self._count += 1
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=2)
        self.write(f"{base}.before.py", before)
        self.write(f"{base}.after.py", after)
        self.write(f"{base}.diff", "\n".join(lines) + "\n")

    def write_report(self, report: GraphReport) -> None:
        """What happened to the graph so far."""
        self.write("rewrites.json", json.dumps(report.to_dict(), indent=1, default=str) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file of the dump, whole or not at all."""
        if not self._writable:
            return
        temporary = ""
        try:
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".partial")
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, self.folder / name)
        except OSError as error:
            Path(temporary).unlink(missing_ok=True) if temporary else None
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Stop writing, with one warning."""
        if self._writable:
            self._writable = False
            warnings.warn(f"optpass: the dump in {self.folder} stops here: {error}", stacklevel=3)
