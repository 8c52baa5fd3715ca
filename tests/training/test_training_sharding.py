"""Ranks that split rows (Ulysses), hold replicas or reduce gradients at other times compute what one rank does."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma2Config, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from tests.training.training_ranks import engine_of, running, save, train, write
from tests.training.training_tiny import NllEntropy, Squared, make_batch
from verl_core.config.errors import UserError
from verl_core.models.ulysses import check_heads
from verl_core.training.protocol import MicroBatching

ALL = [0, 1, 2, 3, 4, 5]
NLL, SQUARED = NllEntropy(), Squared()
WINDOW = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
MODELS = {
    "qwen2, one key head": (Qwen2Config, {"num_key_value_heads": 1}),
    "qwen2, a window": (Qwen2Config, {"num_key_value_heads": 2, **WINDOW}),
    "qwen3": (Qwen3Config, {"num_key_value_heads": 2}),
    "llama": (LlamaConfig, {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "gemma2, a soft cap": (
        Gemma2Config,
        {"num_key_value_heads": 2, "sliding_window": 4, "attn_logit_softcapping": 5.0},
    ),
    "mixture": (Qwen3MoeConfig, {"num_key_value_heads": 2, **MOE}),
}


@pytest.fixture(scope="module")
def two():
    with running(2) as call:
        yield call


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Folder of a model by its name in MODELS."""
    made = {}

    def folder(name: str):
        if name not in made:
            config, override = MODELS[name]
            made[name] = write(tmp_path_factory.mktemp("model"), config, **override)
        return made[name]

    return folder


def assert_same(got: dict, want: dict, share: list[int] = ALL) -> None:
    for have, wanted in zip(got["metrics"], want["metrics"], strict=True):
        assert have == pytest.approx(wanted, rel=1e-5)
    for part in ("gradients", "weights"):
        assert got[part].keys() == want[part].keys()
        for name, tensor in want[part].items():
            torch.testing.assert_close(got[part][name], tensor, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    place_N = make_batch().token_index(torch.tensor(share, dtype=torch.int64))
    for need, value_N in want["out"].items():
        torch.testing.assert_close(got["out"][need], value_N[place_N], rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("name", MODELS)
def test_ranks_that_split_rows_equal_one_rank(two, model, name):
    batch, folder = make_batch(), model(name)
    one = train(ALL, batch, folder, NLL, {})
    for rank in two(train, [ALL, ALL], batch, folder, NLL, {"split": 2}):
        assert_same(rank, one)


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (NLL, {"micro": MicroBatching(sequences=1)}),  # rows of odd lengths, padded; answers on one rank's side alone
        (NLL, {"micro": MicroBatching(tokens=7), "checkpointing": True}),
        (SQUARED, {"role": "critic", "micro": MicroBatching(tokens=8), "reduce_gradients": "each"}),
    ],
    ids=["sequences", "tokens, recomputed", "critic"],
)
def test_however_rows_are_cut(two, model, loss, options):
    batch, folder = make_batch(), model("qwen2, one key head")
    one = train(ALL, batch, folder, loss, {"role": options.get("role", "actor")})
    for rank in two(train, [ALL, ALL], batch, folder, loss, options | {"split": 2}):
        assert_same(rank, one)


@pytest.mark.slow
def test_compiled_layers_exchange_heads_too(two, model):
    batch, folder = make_batch(), model("qwen3")
    one = train(ALL, batch, folder, NLL, {})
    options = {"split": 2, "micro": MicroBatching(tokens=64), "use_torch_compile": True}  # one row: one shape
    for rank in two(train, [ALL, ALL], batch, folder, NLL, options):
        assert_same(rank, one)


@pytest.mark.parametrize("shares", [[[0, 2, 3, 5], [1, 4]], [ALL, []]], ids=["uneven", "empty"])
@pytest.mark.parametrize(
    "options",
    [{"reduce_gradients": "once"}, {"reduce_gradients": "each"}, {"fsdp_size": 1}],
    ids=lambda o: " ".join(map(str, next(iter(o.items())))),
)
def test_when_gradients_are_reduced_and_over_replicas(two, model, shares, options):
    batch, folder = make_batch(), model("qwen3")
    one = train(ALL, batch, folder, NLL, {})
    options = options | {"micro": MicroBatching(sequences=1)}
    for share, rank in zip(shares, two(train, shares, batch, folder, NLL, options), strict=True):
        assert_same(rank, one, share)


def test_gradients_are_reduced_when_the_key_or_their_size_says(two, model):
    assert two(_reduces_each, ["once"] * 2, model("qwen3"), 1e12) == [False] * 2
    assert two(_reduces_each, ["each"] * 2, model("qwen3"), 1e12) == [True] * 2
    whole = 4 * sum(p.numel() for p in engine_of(model("qwen3")).network.parameters())
    assert two(_reduces_each, [None] * 2, model("qwen3"), whole * 10.1) == [False] * 2
    assert two(_reduces_each, [None] * 2, model("qwen3"), whole * 9.9) == [True] * 2


def _reduces_each(key, folder, memory: float) -> bool:
    from unittest.mock import patch

    from verl_core.platforms import Platform

    with patch.object(Platform, "memory_bytes", lambda self: memory):
        return engine_of(folder, reduce_gradients=key).reduce_each


@pytest.mark.parametrize("options", [{"fsdp_size": 1}, {"split": 2}], ids=["replicas", "split rows"])
def test_checkpoints_do_not_depend_on_the_mesh(two, model, options, tmp_path):
    batch, first, other = make_batch(), model("qwen3"), tmp_path / "other"
    write(other, Qwen3Config, num_key_value_heads=2, initializer_range=0.1)
    want = train(ALL, batch, other, NLL, {})
    two(save, [other] * 2, options, tmp_path / "by_two")
    assert_same(train(ALL, batch, first, NLL, {}, tmp_path / "by_two"), want)
    save(other, {}, tmp_path / "by_one")
    shares = [ALL, ALL] if "split" in options else [ALL, []]
    for share, rank in zip(shares, two(train, shares, batch, first, NLL, options, tmp_path / "by_one"), strict=True):
        assert_same(rank, want, share)


@pytest.mark.slow
def test_four_ranks_as_two_replicas_of_two_shards_that_split_rows_in_pairs(model):
    batch, folder = make_batch(), model("qwen3")
    one = train(ALL, batch, folder, NLL, {})
    shares = [[0, 2, 3, 5], [0, 2, 3, 5], [1, 4], [1, 4]]
    micro = MicroBatching(tokens=8)
    with running(4) as call:
        for options in ({"fsdp_size": 2, "split": 2, "micro": micro}, {"split": 4, "micro": micro}):
            given = shares if options["split"] == 2 else [ALL] * 4
            for reduced in ("once", "each"):
                results = call(train, given, batch, folder, NLL, options | {"reduce_gradients": reduced})
                for share, rank in zip(given, results, strict=True):
                    assert_same(rank, one, share)


def test_what_does_not_divide_is_refused_with_its_numbers(model):
    for size in (2, 4):
        with pytest.raises(UserError, match=f"actor.ulysses_sequence_parallel_size={size} does not divide 1 ranks"):
            engine_of(model("qwen3"), split=size)
    config = Qwen2Config(num_attention_heads=12, num_key_value_heads=4)
    with pytest.raises(UserError, match="key=8 does not divide the model's 12 attention heads"):
        check_heads(config, "key", 8)
    with pytest.raises(UserError, match="key=6 and the model's 4 key-value heads: neither divides the other"):
        check_heads(config, "key", 6)
    for size in (1, 2, 4, 12):
        check_heads(config, "key", size)
