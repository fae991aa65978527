"""What the backward pass computes anew instead of reading: hints for PyTorch's min-cut partitioner."""

from __future__ import annotations

import torch
from torch.fx import Graph
from torch.utils.checkpoint import CheckpointPolicy


def keep_random_numbers_out_of_memory(graph: Graph) -> None:
    """Marks philox numbers of a joint graph for recomputation.

    They are a pure function of an eight-byte seed, so a dropout mask never needs to be saved; the seed itself is drawn
    once, in the forward pass, and saved.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.optpass.philox_uniform.default):
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        node.meta.setdefault("ac_graph_id", 0)
