"""Packing loses nothing: a packed row gives what each sequence gives alone under transformers' own attention."""

import pytest
import torch
from models_tiny import ARCHITECTURES, write_model
from transformers import AutoConfig, AutoModelForCausalLM

from verl_core.config.errors import UserError
from verl_core.config.schema import ModelConfig
from verl_core.models.attention import check_packable, packed_attention
from verl_core.models.packing import Packing
from verl_core.models.pretrained import load_causal_lm

LENGTHS = (7, 1, 12, 3)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_equals_one_by_one(tmp_path, name):
    folder = write_model(tmp_path, name)
    packed = load_causal_lm(ModelConfig(path=str(folder)), dtype=torch.float32)
    alone = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    ids_N = torch.randint(0, 61, (sum(LENGTHS),))
    position_N = torch.cat([torch.arange(n) for n in LENGTHS])
    got = (
        packed(
            input_ids=ids_N[None],
            position_ids=position_N[None],
            use_cache=False,
            packing=Packing(LENGTHS, torch.device("cpu")),
        )
        .logits[0]
        .log_softmax(-1)
    )
    want = torch.cat([alone(input_ids=ids[None], use_cache=False).logits[0] for ids in ids_N.split(LENGTHS)])
    want = want.log_softmax(-1)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    mixed = alone(input_ids=ids_N[None], position_ids=torch.arange(sum(LENGTHS))[None], use_cache=False).logits[0]
    assert (mixed.log_softmax(-1) - want).abs().max() > 1e-2  # the model does look at its context


@pytest.mark.parametrize("options", [{}, {"sliding_window": 3}, {"softcap": 0.5}])
def test_gradients_equal_those_of_dense_masked_attention(options):
    torch.manual_seed(0)
    lengths = (5, 2, 6)
    n = sum(lengths)
    query = torch.randn(1, 4, n, 8, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(1, 2, n, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    packing = Packing(lengths, torch.device("cpu"))
    got, _ = packed_attention(torch.nn.Identity(), query, key, value, None, packing=packing, scaling=0.7, **options)

    seq = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    distance = torch.arange(n)[:, None] - torch.arange(n)[None]
    seen = (seq[:, None] == seq[None]) & (distance >= 0) & (distance < options.get("sliding_window", n))
    score = query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.7
    if cap := options.get("softcap"):
        score = cap * torch.tanh(score / cap)
    want = score.masked_fill(~seen, float("-inf")).softmax(-1) @ value.repeat_interleave(2, 1)

    weight = torch.randn(1, n, 4, 8, dtype=torch.float64)
    got_grads = torch.autograd.grad((got * weight).sum(), (query, key, value))
    want_grads = torch.autograd.grad((want.transpose(1, 2) * weight).sum(), (query, key, value))
    torch.testing.assert_close(got, want.transpose(1, 2))
    for a, b in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)  # soft-capped weights pass through float32


def test_pad_and_unpad_are_inverse_and_padding_is_zero():
    packing = Packing((2, 3), torch.device("cpu"))
    x = torch.arange(1.0, 6.0)[:, None]
    padded = packing.pad(x)
    assert padded[..., 0].tolist() == [[1, 2, 0], [3, 4, 5]]
    assert torch.equal(packing.unpad(padded), x)
    assert packing.cu_B1.tolist() == [0, 2, 5, 5, 5, 5, 5, 5, 5] and packing.longest == 128


def test_architectures_that_see_more_than_a_window_are_refused():
    config = AutoConfig.for_model("qwen3_next")
    with pytest.raises(UserError, match="linear_attention"):
        check_packable(config)
    check_packable(AutoConfig.for_model("qwen2"))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({}, "padded rows"),
        ({"attention_mask": torch.ones(1, 1, 4, 4), "packing": Packing((4,), torch.device("cpu"))}, "a mask"),
        ({"s_aux": torch.zeros(2), "packing": Packing((4,), torch.device("cpu"))}, "attention sinks"),
    ],
)
def test_model_code_that_cannot_run_packed_is_refused_by_name(arguments, what):
    x = torch.zeros(1, 2, 4, 8)
    with pytest.raises(UserError, match=f"Linear computes attention over {what}"):
        packed_attention(torch.nn.Linear(1, 1), x, x, x, **{"attention_mask": None, **arguments})
