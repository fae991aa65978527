"""The fusion pass: groups of nodes become single kernels."""

from __future__ import annotations

from typing import ClassVar

from torch.fx import GraphModule, Node

from optpass.codegen.lower import Lowered, is_getitem, lower
from optpass.codegen.views import is_view
from optpass.errors import UnsupportedOp
from optpass.passes.base import Fact, Pass, PassContext, source_line
from optpass.passes.fusion.candidates import refusal
from optpass.passes.fusion.grouping import Group, Grouping
from optpass.passes.fusion.regions import Region, cut, rebuild
from optpass.report import Fallback

#: Key of a region module's metadata under which its kernel lies.
LOWERED = "optpass_lowered"


class FuseRegions(Pass):
    """Replaces groups of pointwise, reducing, joining and gathering nodes by calls of ``fused_k`` modules.

    Before::

        mean = aten.mean.dim(x, [-1], True); c = aten.sub(x, mean); out = aten.mul(c, w)

    After::

        fused_0 = fused_0(x, w); out = fused_0[0]

    Holds when: every node has a kernel rule, dtype and device suit the target, and the group's values share one
    iteration space (see `grouping`).
    Leaves alone: library operators (products, convolutions, sorts, scans), effects, random draws, complex and sparse
    tensors, empty tensors; their reasons are recorded.
    Numerics: values stay in the accumulation dtype between the nodes of a kernel instead of being rounded to a narrow
    dtype (``parity="eager"`` rounds); sums are reassociated.
    Source: ours.
    """

    name: ClassVar[str] = "fuse-regions"
    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.FUNCTIONAL, Fact.VALUES})

    def run(self, gm: GraphModule, ctx: PassContext) -> None:
        order = {n: i for i, n in enumerate(gm.graph.nodes)}
        refused = {n: r for n in gm.graph.nodes if (r := refusal(n, ctx.target)) is not None}
        regions = self._regions(gm, ctx, refused, order)
        kept = [r for r in regions if ctx.apply("fuse", *r.members)]
        self._record_fallbacks(gm, ctx, refused)
        if kept:
            rebuild(gm, kept, order)

    def _regions(
        self, gm: GraphModule, ctx: PassContext, refused: dict[Node, str], order: dict[Node, int]
    ) -> list[Region]:
        """Grouping and lowering until every group lowers; nodes that cannot are taken out and their reason kept."""
        alone: set[Node] = set()
        while True:
            fusible = {n for n in gm.graph.nodes if n not in refused}
            grouping = Grouping(gm.graph, fusible, alone)
            regions, complete = [], True
            for group in grouping.run():
                try:
                    regions.append(self._lowered(group, grouping, ctx, order))
                except UnsupportedOp as error:
                    complete = False
                    self._isolate(group, grouping, ctx, order, refused, alone, str(error))
            if complete:
                return regions

    def _lowered(self, group: Group, grouping: Grouping, ctx: PassContext, order: dict[Node, int]) -> Region:
        region = cut(group, grouping.inlined, ctx.target, order)
        region.module.meta[LOWERED] = lower(
            region.module, region.domain, "kernel", eager_rounding=ctx.options.parity == "eager"
        )
        return region

    def _isolate(self, group, grouping, ctx, order, refused, alone, reason: str) -> None:
        """Finds the nodes of a failed group that have no kernel of their own; if all have, they stay apart."""
        guilty = False
        for node in group.nodes:
            try:
                self._lowered(grouping.solo(node), grouping, ctx, order)
            except UnsupportedOp as error:
                refused[node], guilty = str(error), True
        if not guilty and len(group.nodes) == 1:
            refused[group.nodes[0]] = reason
        elif not guilty:
            if all(n in alone for n in group.nodes):
                refused.update(dict.fromkeys(group.nodes, reason))
            alone.update(group.nodes)

    def _record_fallbacks(self, gm: GraphModule, ctx: PassContext, refused: dict[Node, str]) -> None:
        for node, reason in refused.items():
            if node.op == "call_function" and not is_view(node) and not is_getitem(node):
                ctx.decline("fuse", node, reason)
                ctx.report.fallbacks.append(Fallback(node.name, reason, source_line(node)))


def lowered_of(gm: GraphModule, call: Node) -> Lowered:
    """The kernel of a ``fused_k`` call."""
    return gm.get_submodule(call.target).meta[LOWERED]  # type: ignore[arg-type]
