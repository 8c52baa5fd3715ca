"""Shapes count the parameters that models really have."""

import json

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.planning.planning_examples import tiny_config
from verl_core.config.errors import UserError
from verl_core.planning import known
from verl_core.planning.models import shape_of
from verl_core.planning.shapes import shape_from

KNOWN = {  # as the model cards and checkpoints have them
    "Qwen/Qwen2-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-Math-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-Coder-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B-Instruct-2507": 4_022_468_096,
    "Qwen/Qwen3-8B-Base": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "meta-llama/Meta-Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
    "google/gemma-2-2b-it": 2_614_341_888,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-1b-it": 999_885_952,
    "builtin:show-your-work": 254_976,  # tests/controller/test_builtin_model.py makes it
}
SMALL = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "intermediate_size": 80, "head_dim": 24}


@pytest.mark.parametrize("path", KNOWN)
def test_known_models_have_their_parameters(path):
    assert shape_of(path, {}).params == KNOWN[path]


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SMALL, tie_word_embeddings=True, attention_bias=True),
        Qwen2Config(**{**SMALL, "head_dim": 16}, tie_word_embeddings=False),
        Qwen3Config(**SMALL, tie_word_embeddings=False),
        Qwen3MoeConfig(**SMALL, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, mlp_only_layers=[0]),
        Gemma2Config(**SMALL),
        Gemma3TextConfig(**SMALL),
    ],
    ids=lambda config: config.model_type,
)
def test_counts_are_those_of_transformers(config, tmp_path):
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape_of(str(tmp_path), {}).params == sum(p.numel() for p in model.parameters())


def test_active_parameters_of_a_mixture():
    assert shape_of("Qwen/Qwen3-30B-A3B", {}).active_params == pytest.approx(3.3e9, rel=0.02)
    assert shape_of("Qwen/Qwen3-235B-A22B", {}).active_params == pytest.approx(22e9, rel=0.02)


def test_adapter_of_all_linear_layers_by_hand():
    shape = shape_from(tiny_config(), "here")
    # q 8+8, k 8+4, v 8+4, o 8+8, gate, up and down 8+16 each: 128 a layer
    assert shape.lora_params(3, "all-linear") == 2 * 3 * 128
    assert shape.lora_params(3, ["q_proj", "v_proj"]) == 2 * 3 * (16 + 12)
    assert shape.lora_params(3, "self_attn.q_proj") == 2 * 3 * 16
    assert shape.lora_params(3, ["lm_head"]) == 0
    mixture = shape_of("Qwen/Qwen3-30B-A3B", {})  # no linear layers but those of attention
    assert mixture.lora_params(1, "all-linear") == 48 * (2 * (2048 + 4096) + 2 * (2048 + 512))


def test_windowed_layers_forget():
    gemma = shape_of("google/gemma-3-1b-it", {})  # 22 of 26 layers look back on 512 tokens
    assert gemma.windowed_layers == 22
    assert gemma.remembered(4096) == pytest.approx((22 * 512 + 4 * 4096) / 26)
    assert shape_of("Qwen/Qwen2.5-7B", {}).remembered(4096) == 4096


def test_overrides_change_the_shape(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()))
    assert shape_of(str(tmp_path), {"num_hidden_layers": 5}).layers == 5
    assert shape_of("Qwen/Qwen2.5-7B", {"num_hidden_layers": 5}).layers == 5


@pytest.mark.parametrize(
    "place",
    ["huggingface", "actor/huggingface", "checkpoints/global_step_9/actor/huggingface", "warmup"],
)
def test_folders_of_runs_and_checkpoints_have_a_shape(tmp_path, place):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "config.json").write_text(json.dumps(tiny_config()))
    assert shape_of(str(tmp_path), {}).hidden == 8


def test_the_newest_checkpoint_of_a_run_counts(tmp_path):
    for step, layers in ((9, 2), (10, 3)):
        folder = tmp_path / f"checkpoints/global_step_{step}/actor/huggingface"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(tiny_config(num_hidden_layers=layers)))
    assert shape_of(str(tmp_path), {}).layers == 3


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("Qwen/Qwen2.5-7B", 131072),
        ("Qwen/Qwen2.5-7B-Instruct", 32768),
        ("Qwen/Qwen2.5-7B-Instruct-1M", 1010000),
        ("Qwen/Qwen2.5-Math-7B-Instruct", 4096),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", 262144),
        ("meta-llama/Llama-3.1-8B-Instruct", 131072),
    ],
)
def test_variants_of_a_model_take_other_lengths(name, longest):
    assert shape_of(name, {}).max_positions == longest


def test_unknown_names_say_what_to_give():
    with pytest.raises(UserError, match="nobody/nothing") as caught:
        shape_of("nobody/nothing", {})
    assert "config.json" in caught.value.hint and "qwen2.5-7b" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_type": "mamba"}', "mamba"),
        ("[]", "no JSON object"),
        ("{", "cannot be read"),
        (json.dumps(tiny_config(hidden_size=None)), "no model has this configuration"),
        (json.dumps({"model_type": "qwen2"}), "no model has this configuration"),
    ],
)
def test_broken_configurations_are_named(tmp_path, text, said):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=said):
        shape_of(str(tmp_path), {})


def test_a_folder_without_a_configuration_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json"):
        shape_of(str(tmp_path), {})


def test_every_known_name_is_whole():
    for name in known.names():
        assert shape_of(name, {}).params > 1e8
