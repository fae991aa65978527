"""Compiles a function with a dump and reads from it what the compiler did, and where it declined to."""

from __future__ import annotations

import argparse
import json
import runpy
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    return F.softmax(scores, -1) @ v


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", default="optpass_dump", help="folder to dump to: %(default)s")
    Path(root := parser.parse_args().dump).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=root))

    q, k, v = torch.randn(3, 2, 4, 64, 32)
    torch.compile(attention, backend="optpass", options={"dump": str(folder)})(q, k, v)

    for graph in sorted(folder.iterdir()):
        print(f"\n{graph}")
        report = json.loads((graph / "rewrites.json").read_text())
        for rewrite in report["rewrites"]:
            print(f"  {rewrite['rule']}: {', '.join(rewrite['nodes'])}")
        for declined in report["declined"]:
            print(f"  left alone: {declined['node']}, because: {declined['reason']}")
        for change in sorted(graph.glob("*.diff")):
            lines = change.read_text().splitlines()[2:]  # after the names of the two files
            print(f"  {change.name}: {sum(line.startswith(('+', '-')) for line in lines)} lines changed")

    program = next(folder.glob("*_inference/000_capture.py"))
    print(f"\n{program} is a program; running it:")
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main()
