"""Random straight-line programs through the whole tensor stage: same bits, same aliases, nothing undone."""

from __future__ import annotations

import math
import random

import pytest
import torch

from optpass.passes.base import Stage
from optpass.passes.pipeline import DEFAULT

UNARY = [
    lambda x: x.sin(),
    lambda x: x * 1.0,
    lambda x: x + 0.0,
    lambda x: x - 0.0,
    lambda x: x.clone(),
    lambda x: x.relu(),
    lambda x: -x,
    lambda x: x / 4,
    lambda x: x / 3,
    lambda x: x.to(torch.bfloat16).to(torch.float32),
    lambda x: x.double().float(),
    lambda x: x.to(torch.bfloat16).double().to(torch.bfloat16).float(),
    lambda x: x.reshape(-1),
    lambda x: x.unsqueeze(0) if x.dim() < 4 else x.squeeze(),
    lambda x: x.squeeze(),
    lambda x: x.transpose(0, -1) if x.dim() > 1 else x,
    lambda x: x.permute(*reversed(range(x.dim()))),
    lambda x: x[0:1] if x.dim() > 0 else x,
    lambda x: x.sum(-1, keepdim=True) if x.dim() else x,
    lambda x: x.expand(2, *x.shape) if x.dim() < 3 else x,
    lambda x: x.contiguous(),
    lambda x: x.detach(),
    lambda x: x * torch.full((), 2.0),
    lambda x: x * torch.ones_like(x),
    lambda x: torch.where(x > 0, x, x),
    lambda x: x + torch.rand_like(x),
]
BINARY = [torch.add, torch.mul, torch.maximum]
SHAPES = [(3, 3), (2, 3), (1, 3), (0, 3), (1, 1), (3,), (2, 3, 3), (4, 2, 1)]


def program(seed):
    """A function of two tensors, the same for the same seed; it may write to its first argument."""

    def run(*inputs):
        choose = random.Random(seed)
        values = list(inputs)
        for _ in range(choose.randint(3, 14)):
            a, b = choose.choice(values), choose.choice(values)
            if choose.random() < 0.25 and a.shape == b.shape:
                values.append(choose.choice(BINARY)(a, b))
            else:
                values.append(choose.choice(UNARY)(a))
        outputs = choose.sample(values, choose.randint(1, 4))
        if choose.random() < 0.3 and values[-1].shape == inputs[0].shape:
            inputs[0].copy_(values[-1].cos())
            outputs.append(values[-2] + 1)
        if choose.random() < 0.3:
            outputs.append(choose.choice(outputs) * 1)
        return outputs

    return run


def check(rewrite, seed):
    choose, generator = random.Random(-seed), torch.Generator().manual_seed(seed)
    shape = choose.choice(SHAPES)
    inputs = [torch.randn(shape, generator=generator) for _ in range(2)]
    if choose.random() < 0.3 and math.prod(shape):
        inputs[0].view(-1)[0], inputs[1].view(-1)[0] = math.nan, -0.0
    if choose.random() < 0.3 and len(shape) > 1:
        inputs = [x.transpose(0, -1) for x in inputs]
    rewrite([*DEFAULT[Stage.TENSOR]], program(seed), *inputs, dynamic=choose.random() < 0.5, parity="eager")


@pytest.mark.null
@pytest.mark.parametrize("seed", range(12))
def test_a_few_programs(rewrite, seed):
    check(rewrite, seed)


@pytest.mark.soak
def test_many_programs(rewrite):
    for seed in range(12, 1000):
        check(rewrite, seed)
