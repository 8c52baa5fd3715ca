"""Several sources with weights: shares, epochs, ids, and resuming."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.config.compose import resolve
from verl_core.config.errors import UserError
from verl_core.config.prompt_files import prompt_files
from verl_core.config.schema import DataConfig, MixtureConfig
from verl_core.data.dataset import PromptDataset
from verl_core.data.interleave import Turns
from verl_core.data.loader import PromptLoader

SIZES = {"math": 5, "code": 11, "qa": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    for name, n in SIZES.items():
        rows = [
            {"data_source": name, "prompt": f"{name} {i}", "reward_model": {"ground_truth": str(i)}} for i in range(n)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def config(folder, weights, **keys):
    mixture = {name: MixtureConfig([str(folder / f"{name}.jsonl")], weight) for name, weight in weights.items()}
    return DataConfig(mixture=mixture, **keys)


def loader_of(cfg, tokenizer, seed=0):
    return PromptLoader(PromptDataset(cfg.mixture, cfg, tokenizer, "train", seed), cfg, seed)


def uids(loader, steps):
    return [[row.uid for row in loader.next()] for _ in range(steps)]


@settings(max_examples=60)
@given(
    weights=st.lists(st.floats(0.01, 100, allow_nan=False).map(lambda w: round(w, 3)), min_size=2, max_size=6),
    turns=st.integers(1, 150),
)
def test_after_any_number_of_turns_each_source_has_its_share_to_within_one(weights, turns):
    dealt, counts = Turns(weights), [0] * len(weights)
    for turn in range(1, turns + 1):
        counts[dealt.next(counts)] += 1
        for count, weight in zip(counts, weights, strict=True):
            assert abs(count - turn * weight / sum(weights)) <= 1 - 1 / (2 * len(weights) - 2) + 1e-9


def test_each_source_has_its_own_permutations_epochs_and_ids(folder, tokenizer):
    loader = loader_of(config(folder, {"math": 3, "code": 1}, train_batch_size=4), tokenizer)
    rows = [row for _ in range(10) for row in loader.next()]
    assert Counter(row.data_source for row in rows) == {"math": 30, "code": 10}
    assert len({row.uid for row in rows}) == 40
    for name, n in (("math", 5), ("code", 10)):
        own = [row for row in rows if row.uid.startswith(f"{name}/")]
        assert {row.data_source for row in own} == {name}
        for epoch in range(len(own) // n):
            part = own[epoch * n : (epoch + 1) * n]
            assert len({row.index for row in part}) == n  # no prompt twice in an epoch
            assert {row.uid.split("/")[1].split("-")[0] for row in part} == {str(epoch)}
    assert loader.metrics() == {"training/epoch/math": 6, "training/epoch/code": 0}
    assert loader.epoch == 40 // 16 and loader.steps_per_epoch == 4


def test_the_order_of_one_source_does_not_hang_on_the_others(folder, tokenizer):
    def of_math(weights):
        stream = uids(loader_of(config(folder, weights, train_batch_size=5), tokenizer), 6)
        return [uid for batch in stream for uid in batch if uid.startswith("math/")][:10]

    assert of_math({"math": 1, "code": 1}) == of_math({"math": 2, "code": 1})


@settings(max_examples=30)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.3]), min_size=3, max_size=3),
    batch=st.integers(1, 7),
    stop=st.integers(0, 12),
    seed=st.integers(0, 2),
)
def test_resume_at_any_batch_gives_bitwise_the_same_stream(folder, tokenizer, weights, batch, stop, seed):
    cfg = config(folder, dict(zip(SIZES, weights, strict=True)), train_batch_size=batch)
    unbroken = loader_of(cfg, tokenizer, seed)
    uids(unbroken, stop)
    resumed = loader_of(cfg, tokenizer, seed)
    resumed.load_state(json.loads(json.dumps(unbroken.state())))
    assert [resumed.next() for _ in range(6)] == [unbroken.next() for _ in range(6)]


def test_resume_with_other_weights_or_sources_is_refused_by_a_plain_sentence(folder, tokenizer):
    state = loader_of(config(folder, {"math": 2, "code": 1}, train_batch_size=4), tokenizer).state()
    for weights, said in [
        ({"math": 1, "code": 1}, "the weight of math was 2, is 1"),
        ({"math": 2, "qa": 1}, "the weight of qa was None, is 1; the weight of code was 1, is None"),
    ]:
        with pytest.raises(UserError, match=f"not those of the checkpoint: .*{said}"):
            loader_of(config(folder, weights, train_batch_size=4), tokenizer).load_state(state)


def test_max_samples_of_a_source_is_its_own(folder, tokenizer):
    cfg = config(folder, {"math": 1, "code": 1}, train_batch_size=4)
    cfg.mixture["code"] = replace(cfg.mixture["code"], max_samples=3)
    dataset = PromptDataset(cfg.mixture, cfg, tokenizer, "train", 0)
    assert [len(part.positions) for part in dataset.parts] == [5, 3]
    assert [dataset.raw(p).data_source for p in dataset.parts[1].positions] == ["code"] * 3


def test_a_source_of_which_nothing_is_left_is_named(folder, tokenizer):
    cfg = config(folder, {"math": 1}, train_batch_size=1, filter_overlong_prompts=True, max_prompt_length=1)
    with pytest.raises(UserError, match=r"no train prompts in .*math.jsonl: all 5 prompts are longer"):
        loader_of(cfg, tokenizer)


def test_the_command_line_names_sources_and_their_faults():
    words = ["data.mixture.math.files=a.parquet", "data.mixture.math.weight=2", "data.mixture.qa.files=[b*, c.jsonl]"]
    found = resolve("smoke", words)
    assert prompt_files(found.config.data) == {
        "data.mixture.math.files": ["a.parquet"],
        "data.mixture.qa.files": ["b*", "c.jsonl"],
        "data.val_files": ["builtin:show-your-work"],
    }
    for faulty, said in [
        ("data.mixture.math.weight=0", r"data.mixture.math.weight=0.0 .* is not in \(0, inf\)"),
        ("data.mixture.math.max_samples=0", "data.mixture.math.max_samples=0"),
        ("data.mixture.other.weight=1", "data.mixture.other.files names no prompts"),
    ]:
        with pytest.raises(UserError, match=said):
            resolve("smoke", [*words, faulty])
    idle = resolve("smoke", [*words, "data.train_files=x.parquet"]).warnings
    assert any("data.train_files" in warning for warning in idle)
