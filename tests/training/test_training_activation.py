"""Recomputed and offloaded activations change nothing that is computed, and keep less."""

import pytest
import torch
from training_tiny import NllEntropy, make_batch, totals, weights, write_model

from verl_core.config.schema import ActorConfig, FsdpConfig, ModelConfig
from verl_core.models.joint import join_projections
from verl_core.platforms import current
from verl_core.training.fsdp import FsdpEngine, activation
from verl_core.training.fsdp.shard import decoder_layers
from verl_core.training.protocol import MicroBatching

WAYS = {
    "full": {"enable_gradient_checkpointing": True},
    "selective": {"enable_gradient_checkpointing": True, "recompute_granularity": "selective"},
    "offloaded": {"enable_activation_offload": True},
    "full, offloaded": {"enable_gradient_checkpointing": True, "enable_activation_offload": True},
    "selective, offloaded": {
        "enable_gradient_checkpointing": True, "recompute_granularity": "selective", "enable_activation_offload": True
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), num_hidden_layers=3)


def engine_of(folder, fsdp=None, **options):
    options.setdefault("enable_gradient_checkpointing", False)
    return FsdpEngine(
        ModelConfig(path=str(folder), **options),
        ActorConfig(fsdp_config=fsdp or FsdpConfig()),
        role="actor",
        platform=current("cpu"),
        micro=MicroBatching(sequences=2),
    )


@pytest.mark.parametrize("fsdp", [FsdpConfig(), FsdpConfig(dtype="bfloat16")], ids=["float32", "copies"])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_is_the_same_bit_for_bit(folder, way, fsdp, monkeypatch):
    monkeypatch.setattr(activation, "LEAST_BYTES", 0)
    batch = make_batch()
    plain, other = engine_of(folder, fsdp), engine_of(folder, fsdp, **WAYS[way])
    for _ in range(2):
        for engine in (plain, other):
            engine.step(batch, NllEntropy(), totals(batch))
    for (name, a), b in zip(weights(plain).items(), weights(other).values(), strict=True):
        assert torch.equal(a, b), name


def kept(engine) -> int:
    """Bytes that autograd keeps for the backward pass of one micro-batch, without weights."""
    total = 0

    def count(x):
        nonlocal total
        if not activation._is_weight(x):
            total += x.nbytes
        return x

    _, x = next(engine._inputs(make_batch(), None))
    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        engine.network(x, NllEntropy.needs, 1.0)
    return total


@pytest.mark.parametrize("width", [256, 48])  # 48: narrower than queries, keys and values together
def test_selective_keeps_less_than_all_and_more_than_full(tmp_path, width):
    wide = write_model(tmp_path, intermediate_size=width)
    engines = {way: engine_of(wide, **WAYS[way]) for way in ("full", "selective")}
    recomputed = {way: _products(engine) for way, engine in engines.items()}
    assert recomputed["full"] > recomputed["selective"] > 0
    assert kept(engines["full"]) < kept(engine_of(wide))


def test_selective_keeps_joint_projections(folder):
    alone, joint = (engine_of(folder, **WAYS["selective"]) for _ in range(2))
    join_projections(joint.network)
    assert _products(joint) == _products(alone) > 0


def _products(engine) -> int:
    """FLOPs of matrix products that a backward pass computes again: those of the step beyond the plain engine's."""
    from torch.utils.flop_counter import FlopCounterMode

    batch = make_batch()
    with FlopCounterMode(display=False) as counted:
        engine.step(batch, NllEntropy(), totals(batch))
    with FlopCounterMode(display=False) as plain:
        engine_of(engine.model.config._name_or_path).step(batch, NllEntropy(), totals(batch))
    return counted.get_total_flops() - plain.get_total_flops()


def test_offloaded_activations_are_host_copies_dropped_after_use(folder, monkeypatch):
    monkeypatch.setattr(activation, "LEAST_BYTES", 0)
    packed = []
    original = activation.HostActivations._pack
    monkeypatch.setattr(
        activation.HostActivations, "_pack", lambda self, *a: packed.append(r := original(self, *a)) or r
    )
    engine = engine_of(folder, enable_activation_offload=True)
    batch = make_batch()
    engine.step(batch, NllEntropy(), totals(batch))
    saved = [x for x in packed if isinstance(x, activation._Saved)]
    assert {x.layer for x in saved} == {0, 1, 2} and all(x.device is not None for x in saved)
    assert not any(activation._is_weight(x.host) for x in saved)


def test_frozen_weights_below_an_adapter_are_not_offloaded(folder, monkeypatch):
    monkeypatch.setattr(activation, "LEAST_BYTES", 0)
    offloaded = []
    original = activation.HostActivations._pack

    def pack(self, layer, x):
        result = original(self, layer, x)
        if isinstance(result, activation._Saved):
            offloaded.append((x if x._base is None else x._base).data_ptr())
        return result

    monkeypatch.setattr(activation.HostActivations, "_pack", pack)
    engine = engine_of(folder, enable_activation_offload=True, lora_rank=2, lora_alpha=4)
    weights = {p.data_ptr() for p in engine.network.parameters()}
    engine.step(make_batch(), NllEntropy(), totals(make_batch()))
    assert offloaded and not weights & set(offloaded)


@pytest.mark.slow  # compiles
@pytest.mark.parametrize("way", ["full", "selective", "full, offloaded"])
def test_compiled_layers_recompute_too(folder, way, monkeypatch):
    monkeypatch.setattr(activation, "LEAST_BYTES", 0)
    batch = make_batch()
    plain, other = engine_of(folder), engine_of(folder, FsdpConfig(use_torch_compile=True), **WAYS[way])
    for engine in (plain, other):
        engine.step(batch, NllEntropy(), totals(batch))
    assert all(layer._compiled_call_impl is not None for layer in decoder_layers(other.network))
    for (name, a), b in zip(weights(plain).items(), weights(other).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7, msg=name)
