"""The command `python -m benchmarks`."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import overhead, table
from benchmarks.compile_time import ROOT, compile_seconds
from benchmarks.measure import Result, measure
from benchmarks.workloads import DTYPES, Workload, workloads


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compares torch.compile backends.")
    commands = parser.add_subparsers(required=True)

    run = commands.add_parser("run", help="time, memory, error and compile time of each workload")
    run.add_argument("--only", default="", metavar="SUBSTRING", help="workloads whose names contain this")
    run.add_argument(
        "--dtype", default=list(DTYPES), type=_names, metavar="DTYPES", help=f"of {', '.join(DTYPES)}; default: all"
    )
    run.add_argument("--json", type=Path, help="file for the results; written after each workload")
    run.add_argument("--quick", action="store_true", help="tiny sizes and few repeats: shows that it works, no speed")
    run.add_argument("--skip-compile-time", action="store_true", help="start no fresh processes")
    run.set_defaults(command=_run)

    calls = commands.add_parser("overhead", help="cost of a call of a graph with twenty tiny kernels")
    calls.set_defaults(command=_overhead)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for command in (run, calls):
        command.add_argument("--backends", default="eager,inductor,optpass", type=_names, help="default: %(default)s")
        command.add_argument("--device", choices=("cpu", "cuda"), default=device)
        command.add_argument("--seconds", type=float, default=2.0, help="of timing, a backend; default: %(default)s")

    page = commands.add_parser("table", help="results as Markdown")
    page.add_argument("json", type=Path)
    page.add_argument("--update", type=Path, metavar="PAGE", help="put the tables between the marks of this page")
    page.set_defaults(command=_table)

    chosen = parser.parse_args(arguments)
    chosen.command(chosen)


def _run(chosen: argparse.Namespace) -> None:
    console, machine, results = Console(stderr=True), _machine(chosen.device), []
    chosen_workloads = workloads(chosen.device, chosen.dtype, only=chosen.only, quick=chosen.quick)
    for number, workload in enumerate(chosen_workloads, 1):
        console.print(f"[{number}/{len(chosen_workloads)}] {workload.name}", markup=False)
        new = measure(workload, chosen.backends, seconds=0.0 if chosen.quick else chosen.seconds)
        if not chosen.skip_compile_time:
            for result in new:
                _add_compile_time(result, workload, chosen.quick)
        results += [dataclasses.asdict(result) for result in new]
        if chosen.json:
            chosen.json.parent.mkdir(parents=True, exist_ok=True)
            chosen.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
    table.show(results)


def _add_compile_time(result: Result, workload: Workload, quick: bool) -> None:
    if result.backend == "eager" or result.failure:
        return
    try:
        result.cold_s, result.warm_s = compile_seconds(workload.name, result.backend, workload.device, quick)
    except subprocess.CalledProcessError:
        result.failure = "failed in a fresh process"


def _overhead(chosen: argparse.Namespace) -> None:
    overhead.show(overhead.overhead(chosen.device, chosen.backends, chosen.seconds))


def _table(chosen: argparse.Namespace) -> None:
    text = table.markdown(json.loads(chosen.json.read_text()))
    if chosen.update:
        table.update(chosen.update, text)
    else:
        print(text)


def _machine(device: str) -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "threads": torch.get_num_threads() if device == "cpu" else None,
        "torch": torch.__version__,
        "optpass": version("optpass"),
        "commit": commit.stdout.strip(),
        "date": datetime.date.today().isoformat(),
    }


def _processor() -> str:
    """The CPU's model name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    main()
