"""Compile times in fresh processes: with empty caches, and with the caches that the run before has left.

Run as a program it compiles one workload and prints the seconds that this took.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CACHES = ("OPTPASS_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
ROOT = Path(__file__).parents[1]


def compile_seconds(workload: str, backend: str, device: str, quick: bool) -> tuple[float, float]:
    """Cold and warm compile time of a workload, in seconds.

    Raises:
        subprocess.CalledProcessError: the backend failed; its standard error was passed on.
    """
    command = [sys.executable, "-m", "benchmarks.compile_time", workload, backend, device, *["--quick"] * quick]
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        environment = {**os.environ, **{name: f"{folder}/{name.lower()}" for name in CACHES}}
        cold, warm = (
            float(subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
            for _ in range(2)
        )
    return cold, warm


def main() -> None:
    import torch

    from benchmarks.workloads import DTYPES, compiled, workloads

    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time", description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("backend")
    parser.add_argument("device")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    (workload,) = (w for w in workloads(chosen.device, list(DTYPES), quick=chosen.quick) if w.name == chosen.workload)
    case = workload.case()
    forward = compiled(case.module, chosen.backend)

    def step_seconds(function) -> float:
        start = time.perf_counter()
        case.step(function)
        if chosen.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    step_seconds(case.module)  # libraries load on first use
    print(step_seconds(forward) - step_seconds(forward))


if __name__ == "__main__":
    main()
