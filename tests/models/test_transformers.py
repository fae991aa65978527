"""Real architectures: outputs and gradients as close to float64 as eager's are."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def make(name: str, attention: str, **more):
    """A model and its inputs; the same ones for the same arguments."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    common = dict(attn_implementation=attention, **more)
    tokens = dict(input_ids=torch.randint(0, 97, (2, 13)))
    no_dropout = dict(hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    encoder = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, **no_dropout)
    match name:
        case "llama":
            config = transformers.LlamaConfig(
                hidden_size=64, intermediate_size=172, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, vocab_size=97, **common,
            )  # fmt: skip
            return transformers.LlamaForCausalLM(config), {**tokens, "use_cache": False}
        case "gpt2":
            off = dict(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
            config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=97, **off, **common)
            return transformers.GPT2LMHeadModel(config), {**tokens, "use_cache": False}
        case "bert":
            config = transformers.BertConfig(vocab_size=97, **encoder, **common)
            return transformers.BertModel(config), {**tokens, "attention_mask": torch.ones(2, 13, dtype=torch.long)}
        case "vit":
            config = transformers.ViTConfig(image_size=32, patch_size=8, **encoder, **common)
            return transformers.ViTModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}
    raise ValueError(name)


def first(output):
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def converted(inputs, dtype):
    return {k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in inputs.items()}


def outputs_and_gradients(model, call, inputs):
    model.eval()
    with torch.no_grad():
        inferred = first(call(**inputs))
    model.train()
    first(call(**inputs)).pow(2).mean().backward()
    gradients = {k: p.grad.double().clone() for k, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return {"output": inferred.double(), **gradients}


def distance(a, b):
    """The largest error, in units of the largest value."""
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-12)).item()


def compare(name: str, attention: str, dtype: torch.dtype, dynamic: bool) -> None:
    model, inputs = make(name, attention)
    model, given = model.to(dtype), converted(inputs, dtype)
    exact, _ = make(name, attention)
    exact.load_state_dict(model.state_dict())
    exact = exact.double()
    want = outputs_and_gradients(exact, exact, converted(inputs, torch.float64))
    eager = outputs_and_gradients(model, model, given)
    got = outputs_and_gradients(model, torch.compile(model, backend="optpass", dynamic=dynamic or None), given)
    # A parameter that the loss does not see has a gradient of zeros from AOTAutograd, and none in eager.
    assert not any(got[k].any() for k in got.keys() - eager.keys())
    # Sums of some 64 terms in another order: eager's own error varies by sqrt(64) units of the dtype at most.
    unit = 8 * torch.finfo(dtype).eps
    wrong = {k: (distance(got[k], want[k]), distance(eager[k], want[k])) for k in eager}
    wrong = {k: e for k, e in wrong.items() if e[0] > max(2 * e[1], unit)}
    assert not wrong


@pytest.mark.parametrize(
    "name, attention, dtype, dynamic",
    [
        ("llama", "eager", torch.float32, False),
        ("llama", "sdpa", torch.bfloat16, True),
        ("gpt2", "eager", torch.bfloat16, False),
        ("bert", "sdpa", torch.float32, True),
        ("vit", "eager", torch.float32, False),
    ],
)
def test_a_few(name, attention, dtype, dynamic):
    compare(name, attention, dtype, dynamic)


@pytest.mark.soak
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
def test_all(name, attention, dtype, dynamic):
    compare(name, attention, dtype, dynamic)
