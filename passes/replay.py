"""Replay of a single rewrite: the graph before against the graph after, on adversarial values."""

from __future__ import annotations

from torch.fx import GraphModule

from optpass.passes.snapshot import Snapshot
from optpass.report import Rewrite
from optpass.torch_private import FakeTensorMode

__all__ = ["Disagreement", "RewriteCheck"]


class Disagreement(Exception):
    """The graph computes other values after a rewrite than before."""

    def __init__(self, rewrite: Rewrite, reason: str) -> None:
        self.rewrite, self.reason = rewrite, reason
        super().__init__(f"rewrite {rewrite.number} ({rewrite.rule} at {', '.join(rewrite.nodes)}): {reason}")


class RewriteCheck:
    """Called with each complete rewrite of one run of a pass."""

    def __init__(
        self, gm: GraphModule, before: Snapshot, mode: FakeTensorMode | None, exact: bool, done: dict[int, str]
    ) -> None:
        self.gm, self.before = gm, before

    def __call__(self, rewrite: Rewrite) -> None:
        self.before = Snapshot(self.gm.graph)
