"""Ranks that have parts of layers (tensor parallelism) or some of the experts compute what one rank does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.training.test_training_sharding import assert_same
from tests.training.training_ranks import engine_of, running, train, whole, write
from tests.training.training_tiny import NllEntropy, Squared, make_batch, totals, weights
from verl_core.checkpoint.distributed import load_role, save_role
from verl_core.config.errors import UserError
from verl_core.training.protocol import MicroBatching

ALL = [0, 1, 2, 3, 4, 5]
APART = [[0, 2, 3, 5], [1, 4]]
NLL, SQUARED = NllEntropy(), Squared()
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
SHARED = MOE | {"shared_expert_intermediate_size": 24, "mlp_only_layers": [0]}
LATENT = {"q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
BIASED = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "intermediate_size": 50}
WINDOW = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
MODELS = {
    "qwen2": (Qwen2Config, WINDOW),
    "qwen3": (Qwen3Config, {}),
    "llama with biases": (LlamaConfig, BIASED),  # 50 wide: parts that do not divide over shards
    "gemma": (GemmaConfig, {}),
    "gemma2": (Gemma2Config, {"sliding_window": 4, "attn_logit_softcapping": 5.0}),
    "mixture": (Qwen3MoeConfig, MOE),
    "mixture with a shared expert": (Qwen2MoeConfig, SHARED),
}
TENSOR, EXPERT = {"tensor_parallel_size": 2}, {"expert_parallel_size": 2}


@pytest.fixture(scope="module")
def two():
    with running(2) as call:
        yield call


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Folder of a model by its name in MODELS."""
    made = {}

    def folder(name: str) -> Path:
        if name not in made:
            config, override = MODELS[name]
            made[name] = write(tmp_path_factory.mktemp("model"), config, num_key_value_heads=2, **override)
        return made[name]

    return folder


@pytest.mark.parametrize("name", MODELS)
def test_parts_of_layers_equal_one_rank(two, model, name):
    batch, folder = make_batch(), model(name)
    one = train(ALL, batch, folder, NLL, {})
    for rank in two(train, [ALL, ALL], batch, folder, NLL, TENSOR):
        assert_same(rank, one)


@pytest.mark.parametrize("shares", [APART, [ALL, []]], ids=["uneven", "empty"])
def test_dealt_out_experts_equal_one_rank(two, model, shares):
    batch, folder = make_batch(), model("mixture")
    one = train(ALL, batch, folder, NLL, {})
    options = EXPERT | {"micro": MicroBatching(sequences=1), "checkpointing": True, "reduce_gradients": "each"}
    for share, rank in zip(shares, two(train, shares, batch, folder, NLL, options), strict=True):
        assert_same(rank, one, share)


def test_dealt_out_experts_of_split_rows(two, model):
    batch, folder = make_batch(), model("mixture with a shared expert")
    one = train(ALL, batch, folder, NLL, {})
    for rank in two(train, [ALL, ALL], batch, folder, NLL, EXPERT | {"split": 2}):
        assert_same(rank, one)


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (NLL, {"micro": MicroBatching(sequences=1), "checkpointing": True}),  # odd rows, padded
        (SQUARED, {"role": "critic", "micro": MicroBatching(tokens=12), "reduce_gradients": "each"}),
    ],
    ids=["recomputed", "critic"],
)
def test_however_rows_are_cut(two, model, loss, options):
    batch, folder = make_batch(), model("qwen2")
    one = train(ALL, batch, folder, loss, {"role": options.get("role", "actor")})
    for rank in two(train, [ALL, ALL], batch, folder, loss, TENSOR | options):
        assert_same(rank, one)


def step(share: list[int], folder: Path, options: dict, start: Path | None, to: Path) -> dict:
    """One step from a checkpoint into another, with everything moved to host memory and back, and a snapshot used, on
    the way."""
    batch = make_batch()
    engine = engine_of(folder, **options)
    if start:
        engine.load_state(load_role(start, engine.state()))
    engine.snapshot("before")
    engine.offload("cpu")
    metrics = engine.step(batch.select(share), NLL, totals(batch))
    save_role(to, engine.state())
    with engine.use("before"):
        before = weights(engine)
    optimizer = {name: whole(tensor) for name, tensor in engine.state().optimizer.items()}
    return {"metrics": metrics, "weights": weights(engine), "before": before, "optimizer": optimizer}


@pytest.mark.parametrize(
    ("name", "options", "shares"), [("qwen3", TENSOR, [ALL, ALL]), ("mixture", EXPERT, APART)], ids=["tensor", "expert"]
)
def test_checkpoints_do_not_depend_on_parts(two, model, tmp_path, name, options, shares):
    folder = model(name)
    one = [step(ALL, folder, {}, tmp_path / f"one{i - 1}" if i else None, tmp_path / f"one{i}") for i in range(3)]
    first = two(step, shares, folder, options, None, tmp_path / "by_two")
    second = step(ALL, folder, {}, tmp_path / "by_two", tmp_path / "by_one")
    third = two(step, shares, folder, options, tmp_path / "by_one", tmp_path / "end")
    for found, want in ((first[0], one[0]), (second, one[1]), (third[1], one[2])):
        assert found["metrics"] == pytest.approx(want["metrics"], rel=1e-5)
        for part in ("weights", "before", "optimizer"):
            assert found[part].keys() == want[part].keys()
            for key, tensor in want[part].items():
                torch.testing.assert_close(found[part][key], tensor, rtol=1e-5, atol=1e-5)


def pieces(folder: Path, options: dict) -> dict[str, int]:
    """Numbers that this rank holds of each parameter."""
    return {name: tensor.to_local().numel() for name, tensor in engine_of(folder, **options).named_shards()}


def test_a_rank_holds_its_part_and_nothing_else_of_matrices(two, model):
    whole_ones = {name: t.numel() for name, t in engine_of(model("mixture")).named_shards()}
    for options in (TENSOR, EXPERT):
        for held in two(pieces, [model("mixture")] * 2, options):
            for name, numbers in whole_ones.items():
                matrix = "experts" in name or "proj" in name or "embed" in name or "lm_head" in name
                assert held[name] <= (numbers + 61 if matrix else numbers) // (2 if matrix else 1)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["muon", "adamw_host"])
def test_other_optimizers(two, model, optimizer):
    batch, folder = make_batch(), model("qwen3")
    one = train(ALL, batch, folder, NLL, {"optimizer": optimizer})
    for rank in two(train, [ALL, ALL], batch, folder, NLL, TENSOR | {"optimizer": optimizer}):
        for name, tensor in one["weights"].items():
            torch.testing.assert_close(rank["weights"][name], tensor, rtol=2e-3, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "shares"),
    [("qwen3", TENSOR, [ALL, ALL]), ("mixture", TENSOR, [ALL, ALL]), ("mixture", EXPERT, APART)],
    ids=["layers", "layers with experts", "experts"],
)
def test_compiled_layers(two, model, name, options, shares):
    batch, folder = make_batch(), model(name)
    one = train(ALL, batch, folder, NLL, {})
    options = options | {"micro": MicroBatching(tokens=64), "use_torch_compile": True, "checkpointing": True}
    for share, rank in zip(shares, two(train, shares, batch, folder, NLL, options), strict=True):
        assert_same(rank, one, share)


@pytest.mark.slow
def test_four_ranks(model):
    batch = make_batch()
    pairs = [APART[0], APART[0], APART[1], APART[1]]
    cases = [
        ("llama with biases", TENSOR, pairs),
        ("qwen3", TENSOR | {"fsdp_size": 2, "micro": MicroBatching(sequences=2), "reduce_gradients": "each"}, pairs),
        ("mixture", TENSOR, pairs),
        ("mixture", EXPERT, [[0, 2], [3, 5], [1], [4]]),
        ("mixture", {"expert_parallel_size": 4}, [[0, 2], [3, 5], [1, 4], []]),
        ("mixture", EXPERT | {"fsdp_size": 2}, [[0, 2], [3, 5], [1], [4]]),
    ]
    with running(4) as call:
        for name, options, shares in cases:
            one = train(ALL, batch, model(name), NLL, {})
            for share, rank in zip(shares, call(train, shares, batch, model(name), NLL, options), strict=True):
                assert_same(rank, one, share)


def refused(folder: Path, options: dict) -> str:
    try:
        engine_of(folder, **options)
    except UserError as error:
        return str(error)
    return "not refused"


def test_what_does_not_divide_is_refused_with_its_numbers(two, model, tmp_path):
    prefix = "actor.fsdp_config"
    assert f"{prefix}.tensor_parallel_size=2 does not divide 1 ranks" in refused(model("qwen3"), TENSOR)
    assert f"{prefix}.expert_parallel_size=2 does not divide 1 ranks" in refused(model("mixture"), EXPERT)
    one_key = write(tmp_path / "one_key", Qwen3Config, num_key_value_heads=1)
    odd = write(tmp_path / "odd", Qwen3Config, num_key_value_heads=2, intermediate_size=49)
    odd_experts = write(tmp_path / "experts", Qwen3MoeConfig, num_key_value_heads=2, **MOE | {"num_experts": 3})
    phi = write(tmp_path / "phi", Phi3Config, num_key_value_heads=2, pad_token_id=0)
    gpt2 = write(tmp_path / "gpt2", GPT2Config)
    latent = write(tmp_path / "latent", DeepseekV3Config, num_key_value_heads=2, first_k_dense_replace=4, **LATENT)
    for folder, options, says in (
        (one_key, TENSOR, f"{prefix}.tensor_parallel_size=2 does not divide the model's 1 key-value heads"),
        (odd, TENSOR, "mlp.gate_proj: 2 ranks do not divide its 49 columns"),
        (odd_experts, TENSOR, f"{prefix}.tensor_parallel_size=2 does not divide the model's 3 experts"),
        (odd_experts, EXPERT, f"{prefix}.expert_parallel_size=2 does not divide the model's 3 experts"),
        (model("qwen3"), EXPERT, f"{prefix}.expert_parallel_size=2: the model has no experts"),
        (model("mixture"), TENSOR | EXPERT, "do not go together"),
        (model("mixture"), TENSOR | {"split": 2}, "do not go together"),
        (model("qwen3"), TENSOR | {"fsdp_size": 1}, f"{prefix}.tensor_parallel_size=2 does not divide 1 ranks"),
        (phi, TENSOR, "transformers' plan of 'phi3'"),
        (gpt2, TENSOR, "transformers' plan of 'gpt2' has no layers"),
        (latent, TENSOR, "transformers' plan of 'deepseek_v3' does not name self_attn"),  # latent attention is whole
    ):
        for message in two(refused, [folder] * 2, options):
            assert says in message
