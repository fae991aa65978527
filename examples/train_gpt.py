"""Trains a tiny GPT, with dropout, to spell the alphabet: forward and backward both run compiled."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LETTERS = 26


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.dropout(self.out(attended), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm2(x)), self.dropout, self.training)


class Gpt(nn.Module):
    def __init__(
        self, width: int = 64, heads: int = 4, layers: int = 2, length: int = 64, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(LETTERS, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, LETTERS)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.norm(self.blocks(self.tokens(tokens) + self.positions(places)))
        return F.cross_entropy(self.head(states).flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Gpt().to(device)
    step = torch.compile(model, backend="optpass")
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for number in range(steps):
        starts = torch.randint(LETTERS, (16, 1), device=device)
        text = (starts + torch.arange(33, device=device)) % LETTERS
        loss = step(text[:, :-1], text[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if number % 10 == 0 or number == steps - 1:
            print(f"step {number:3}  loss {losses[-1]:.3f}")
    if losses[-1] >= losses[0]:
        raise SystemExit("the loss did not fall")


if __name__ == "__main__":
    main()
