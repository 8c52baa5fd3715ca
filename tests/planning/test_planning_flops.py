"""The FLOP formula against a count of every matrix product that a model makes."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from verl_core.planning import gpus
from verl_core.planning.flops import Flops
from verl_core.planning.models import shape_of
from verl_core.planning.shapes import ModelShape, shape_from

SIZES = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
}  # fmt: skip
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}


def counted(model, length: int) -> int:
    """FLOPs that torch counts in a forward of one sequence, whole square of attention included."""
    ids = torch.randint(0, 500, (1, length))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids)
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("config", "model"),
    [(Qwen2Config(**SIZES), Qwen2ForCausalLM), (Qwen3MoeConfig(**SIZES, **MOE), Qwen3MoeForCausalLM)],
    ids=["grouped-query", "experts"],
)
def test_it_is_what_torch_counts(config, model):
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"  # one product an expert, which the counter sees
    length, shape = 128, shape_from(config.to_dict(), "here")
    flops = Flops.forward(shape)
    # a whole square where causal attention needs half; parameters without a product (norms, biases) are a rest
    square = 4 * shape.q_width * shape.layers * length**2 / 2
    want = counted(model(config).eval(), length)
    assert flops.sequence(length, answers=length) + square == pytest.approx(want, rel=0.01)


def windowed(window: int | None, layers: int) -> Flops:
    shape = replace(shape_of("Qwen/Qwen2.5-0.5B", {}), sliding_window=window, windowed_layers=layers)
    return Flops.forward(shape)


@pytest.mark.parametrize("length", [1, 100, 512, 2000])
def test_a_window_counts_its_band(length: int):
    pairs = sum(min(i + 0.5, 512) for i in range(length))  # a token sees itself half: the continuous sum
    whole, half = windowed(None, 0), windowed(512, 12)
    attention = half.sequence(length, 0) - half.token * length
    full = whole.pair * length**2 / 2
    band = whole.pair * pairs
    assert attention == pytest.approx((full + band) / 2, rel=1e-9)


def test_an_update_is_three_passes_and_frozen_matrices_take_two():
    shape = shape_of("Qwen/Qwen2.5-0.5B", {})
    forward = Flops.forward(shape)
    assert forward.update().sequence(1000, 500) == pytest.approx(3 * forward.sequence(1000, 500))
    adapter = forward.update(adapter=1000)
    only_attention = 3 * forward.pair * 1000**2 / 2
    assert adapter.sequence(1000, 0) == pytest.approx(1000 * (2 * forward.token + 6000) + only_attention)


def test_a_value_model_has_no_output_layer():
    shape = shape_of("Qwen/Qwen2.5-0.5B", {})
    assert Flops.forward(shape, head=False).sequence(10, 5) == Flops.forward(shape).sequence(10, 0)


def test_experts_count_as_many_as_a_token_takes():
    shape: ModelShape = shape_of("Qwen/Qwen3-30B-A3B", {})
    assert 2.5e9 < Flops.forward(shape).token / 2 < 3.5e9


@pytest.mark.parametrize(
    ("product", "tflops"),
    [
        ("NVIDIA H200", 989), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA A100-SXM4-40GB", 312), ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362), ("NVIDIA GeForce RTX 4090", 165), ("AMD Instinct MI300X", 1307),
        ("NVIDIA H100 PCIe", None), ("NVIDIA H200 NVL", None), ("NVIDIA GH200 480GB", None), ("NVIDIA A10G", None),
        ("AMD EPYC 9R14", None), ("Intel(R) Xeon(R) Platinum 8488C", None),
    ],
)  # fmt: skip
def test_the_peak_is_a_known_cards_or_none(product: str, tflops: int | None):
    assert gpus.peak_flops(product) == (tflops * 1e12 if tflops else None)
