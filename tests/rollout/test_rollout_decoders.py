"""Both decoders against transformers' own forward and generate."""

from __future__ import annotations

import pytest
import torch
from rollout_models import FAMILY, GENERIC, build, engine_for, mixed_requests, prompt, reference_logps, request

from verl_core.rollout.hf.generic import GenericDecoder
from verl_core.rollout.hf.llama_family import LlamaDecoder, is_llama_family

EVERY = {**FAMILY, **GENERIC}


def test_which_decoder_runs_a_model():
    assert all(is_llama_family(config) for config in FAMILY.values())
    assert not any(is_llama_family(config) for config in GENERIC.values())


def test_a_rope_that_changes_with_the_length_is_left_to_the_generic_decoder():
    config = type(FAMILY["qwen3"])(**FAMILY["qwen3"].to_dict())
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    assert not is_llama_family(config)


@pytest.mark.parametrize("name", EVERY)
def test_logps_and_greedy_ids_are_those_of_transformers(name: str):
    """20 requests through 3 slots: refilled rows, shared prompts, unlike lengths and temperatures."""
    model = build(EVERY[name])
    requests = mixed_requests(20)
    completions = engine_for(model, max_num_seqs=3).generate(requests)
    for asked, completion in zip(requests, completions, strict=True):
        expected = reference_logps(model, asked, completion)
        torch.testing.assert_close(torch.tensor(completion.logps), expected, atol=1e-5, rtol=0)
        if asked.sampling.temperature == 0:
            out = model.generate(torch.tensor([asked.ids]), do_sample=False, max_new_tokens=asked.sampling.max_tokens)
            assert completion.ids == out[0, len(asked.ids) :].tolist()


@pytest.mark.parametrize("name", ["llama-llama3-rope", "mistral-sliding", "qwen3"])
def test_attention_of_half_precision_is_the_same_attention(name: str):
    """The path taken in bfloat16, checked in float32, where equality is exact enough to mean something."""
    model = build(FAMILY[name])
    engine = engine_for(model, max_num_seqs=3)
    assert isinstance(engine._decoder, LlamaDecoder)
    engine._decoder.products = False
    requests = mixed_requests(8)
    for asked, completion in zip(requests, engine.generate(requests), strict=True):
        expected = reference_logps(model, asked, completion)
        torch.testing.assert_close(torch.tensor(completion.logps), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["qwen2-tied", "gemma2"])
def test_bfloat16(name: str):
    """A bfloat16 engine copies a float32 trainer's weights and stays near its log-probs."""
    model = build(EVERY[name])
    requests = mixed_requests(8)
    completions = engine_for(model, dtype=torch.bfloat16).generate(requests)
    pairs = [(torch.tensor(c.logps), reference_logps(model, r, c)) for r, c in zip(requests, completions, strict=True)]
    difference = torch.cat([ours - theirs for ours, theirs in pairs]).abs()
    assert 0 < difference.mean() < 0.05


def test_prompts_of_one_token():
    """The shortest prompt decides the cache's layout; longer ones must still fit it."""
    model = build(FAMILY["qwen2-tied"])
    engine = engine_for(model, max_num_seqs=2)
    requests = [request("a", (5,), temperature=0.0), request("b", (7,), seed=3), request("c", prompt(1, 9), seed=4)]
    for asked, completion in zip(requests, engine.generate(requests), strict=True):
        expected = reference_logps(model, asked, completion)
        torch.testing.assert_close(torch.tensor(completion.logps), expected, atol=1e-5, rtol=0)


def test_a_model_the_engine_cannot_run_is_refused():
    from transformers import BloomConfig

    from verl_core.config.errors import UserError

    with pytest.raises(UserError, match=r"'bloom'.*position_ids"):
        engine_for(build(BloomConfig(vocab_size=97, hidden_size=16, n_layer=1, n_head=2)))


def test_generic_decoder_ignores_the_attention_function_a_trainer_chose():
    """A trainer writes its own attention function into the configuration it shares."""
    config = type(GENERIC["gpt-neox"])(**GENERIC["gpt-neox"].to_dict())
    config._attn_implementation = "flex_attention"
    decoder = GenericDecoder(config, torch.device("cpu"), torch.float32, 64)
    assert decoder.model.config._attn_implementation == "sdpa"
    assert config._attn_implementation == "flex_attention"
