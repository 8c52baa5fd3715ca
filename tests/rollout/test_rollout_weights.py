"""Weights on their way in: shared or copied, complete or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rollout_models import FAMILY, GENERIC, build, engine_for, mixed_requests, prompt, reference_logps, request

from verl_core.config.errors import RunError

EVERY = {"tied": FAMILY["qwen2-tied"], "untied": FAMILY["qwen3"], "generic": GENERIC["gemma2"]}


def storages(thing: Any) -> set[int]:
    """Addresses of all tensors an object holds, to any depth."""
    if isinstance(thing, torch.Tensor):
        return {thing.data_ptr()}
    parts = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list) else vars(thing).values()
    return set().union(*(storages(p) for p in parts if isinstance(p, (torch.Tensor, list, dict)) or hasattr(p, "qkv")))


def test_the_fast_decoder_shares_all_but_the_fused_projections():
    model = build(EVERY["tied"])
    held = storages(engine_for(model)._decoder)
    fused = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    for name, parameter in model.named_parameters():
        assert (parameter.data_ptr() in held) == (not any(part in name for part in fused)), name


def test_the_generic_decoder_shares_everything():
    model = build(EVERY["generic"])
    decoder = engine_for(model)._decoder
    assert {p.data_ptr() for p in decoder.model.parameters()} == {p.data_ptr() for p in model.parameters()}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_update_changes_what_is_generated(name: str, dtype: torch.dtype):
    """From another model (shared) and from a float64 trainer (copied, twice into the same memory)."""
    engine = engine_for(build(EVERY[name]))
    for version, seed in enumerate((5, 6), start=2):
        model = build(EVERY[name], seed=seed)
        engine.update_weights(((n, p.to(dtype)) for n, p in model.named_parameters()), version)
        requests = mixed_requests(6)
        for asked, completion in zip(requests, engine.generate(requests), strict=True):
            expected = reference_logps(model, asked, completion)
            torch.testing.assert_close(torch.tensor(completion.logps), expected, atol=1e-5, rtol=0)
            assert set(completion.versions) == {version}


@pytest.mark.parametrize("name", EVERY)
def test_an_optimizer_step_in_place_needs_only_another_update(name: str):
    model = build(EVERY[name])
    engine = engine_for(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    engine.update_weights(model.named_parameters(), version=2)
    asked = request("a", prompt(0), temperature=0.0)
    completion = engine.generate([asked])[0]
    expected = reference_logps(model, asked, completion)
    torch.testing.assert_close(torch.tensor(completion.logps), expected, atol=1e-5, rtol=0)


def test_both_names_of_a_tied_weight_are_known():
    model = build(EVERY["tied"])
    engine = engine_for(model)
    engine.update_weights(model.state_dict().items(), version=2)  # lists lm_head.weight too
    assert engine.version == 2


@pytest.mark.parametrize("name", EVERY)
def test_wrong_weights_are_refused_by_name(name: str):
    model = build(EVERY[name])
    engine = engine_for(model)
    good = dict(model.named_parameters())
    first = next(iter(good))
    with pytest.raises(KeyError, match=r"model\.layers\.9\.mlp\.weight"):
        engine.update_weights([*good.items(), ("model.layers.9.mlp.weight", torch.zeros(1))], version=2)
    with pytest.raises(ValueError, match=rf"{first}.*\(1, 2\)"):
        engine.update_weights({**good, first: torch.zeros(1, 2)}.items(), version=2)
    with pytest.raises(KeyError, match=rf"1 of {len(good)} weights.*{first}"):
        engine.update_weights([pair for pair in good.items() if pair[0] != first], version=2)
    assert engine.version == 1
    with pytest.raises(RunError, match="no weights"):  # none rather than a mixture of two versions
        engine.generate([request("a", prompt(0))])
    engine.update_weights(good.items(), version=3)
    assert set(engine.generate([request("a", prompt(0))])[0].versions) == {3}


@pytest.mark.parametrize("name", EVERY)
def test_weights_that_the_decoder_cannot_take_are_none(name: str, monkeypatch: pytest.MonkeyPatch):
    """No memory for its copies, say."""
    model = build(EVERY[name])
    engine = engine_for(model)

    def full(weights: dict[str, torch.Tensor]) -> None:
        raise MemoryError("full")

    monkeypatch.setattr(engine._decoder, "load", full)
    with pytest.raises(MemoryError):
        engine.update_weights(model.named_parameters(), version=2)
    with pytest.raises(RunError, match="no weights"):
        engine.generate([request("a", prompt(0))])
    monkeypatch.undo()
    engine.update_weights(model.named_parameters(), version=3)
    assert set(engine.generate([request("a", prompt(0))])[0].versions) == {3}
