"""Runs that learn from the answers of a data set: no engine, no scorer, and otherwise the same trainer."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from tests.e2e.conftest import run_dir_of, same_after_a_stop
from verl_core.checkpoint.merge import merge, plan_merge
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.write import load
from verl_core.controller.eval_source import find
from verl_core.tracking.registry import check_known

SOURCE = "rlx/show-your-work"
CLOSE = {"rel": 1e-4, "abs": 1e-6}  # sums over ranks are rounded in another order
LEARNER = {"smoke-sft": "actor", "smoke-rm": "reward_model"}
OF_SCORES = ("critic/", "reward/", "rollout/", "response/", "val/test_score", "timing_s/reward")


@pytest.mark.slow
@pytest.mark.parametrize("profile", LEARNER)
def test_a_stopped_run_goes_on_as_the_unbroken_one(train_here, small, profile: str):
    words = [*small(profile, steps=4), "data.train_max_samples=14"]  # over the end of an epoch, too
    words.append("algorithm.filter_groups.enable=true")  # there are no rewards that it could look at
    unbroken = same_after_a_stop(train_here, words, until=3)
    assert [line["step"] for line in unbroken] == [0, 1, 2, 3, 4]

    names = {name for line in unbroken for name in line} - {"step"}
    check_known(names)
    assert not [name for name in names if name.startswith(OF_SCORES)], "nothing was generated, nothing scored"
    assert unbroken[4][f"val/loss/{SOURCE}"] != unbroken[0][f"val/loss/{SOURCE}"]
    assert all(line[f"{LEARNER[profile]}/grad_norm"] > 0 for line in unbroken[1:])
    assert unbroken[4]["training/epoch"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("profile", LEARNER)
def test_two_ranks_do_what_one_does(train_here, small, profile: str):
    keys = {"trainer__save_freq": 0, "data__val_max_samples": 9, "actor__ppo_micro_batch_size_per_gpu": 3}
    words = [*small(profile, steps=1, **keys), "actor.optim.optimizer=adamw"]  # muon makes much of a rounding
    alone = train_here([*words, "trainer.experiment_name=alone"])
    together = train_here([*words, "cluster.nproc=2"])
    role = LEARNER[profile]
    for one, two in zip(alone, together, strict=True):
        names = [name for name in one if name.startswith((f"{role}/", "val/"))]
        assert names and {name: two[name] for name in names} == pytest.approx({n: one[n] for n in names}, **CLOSE)


@pytest.mark.slow
def test_supervised_training_by_the_command_is_evaluated_by_what_it_generates(rlx, small, tmp_path: Path):
    done = rlx(*small("smoke-sft", steps=2))
    assert done.returncode == 0, done.stderr
    assert "1699 training examples, 2 steps of 4\n" in done.stderr and "val loss" in done.stdout
    done = rlx("eval", str(run_dir_of(tmp_path)), "data.val_max_samples=8", "--json")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["metrics"]) >= {f"val/test_score/{SOURCE}", f"val/acc/{SOURCE}"}


@pytest.mark.slow
def test_a_merged_reward_model_orders_pairs_as_the_trainer_did(train_here, small, tmp_path: Path):
    pairs = tmp_path / "pairs.jsonl"
    answers = [(a, b, f"{a}+{b}={a + b}", f"{a}+{b}={a + b + 1}") for a in range(1, 5) for b in range(1, 5)]
    lines = [{"prompt": f"{a} and {b}?", "chosen": right, "rejected": wrong} for a, b, right, wrong in answers]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = {"data__train_files": pairs, "data__val_files": pairs, "data__val_max_samples": -1}
    last = train_here(small("smoke-rm", steps=6, trainer__save_freq=-1, **files))[-1]
    run_dir, merged = run_dir_of(tmp_path), tmp_path / "merged"
    with pytest.raises(UserError, match="has no role 'actor', it has reward_model"):
        plan_merge(run_dir, merged)
    merge(plan_merge(run_dir, merged, role="reward_model"))
    with pytest.raises(UserError, match="has no model that answers: it trained a reward_model"):
        find(str(run_dir), effective(load(run_dir / "config.yaml")), 0)

    model, report = AutoModelForTokenClassification.from_pretrained(merged, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(merged)

    def reward(prompt: str, answer: str) -> float:
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        text = tokenizer.apply_chat_template(turns, tokenize=False).removesuffix("\n")
        with torch.no_grad():
            return float(model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits[0, -1, 0])

    gaps = [reward(line["prompt"], line["chosen"]) - reward(line["prompt"], line["rejected"]) for line in lines]
    assert last["val/margin/pairs"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-4)
    assert last["val/acc/pairs"] == sum(gap > 0 for gap in gaps) / len(gaps)


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["sft-gsm8k", "rm-pairs", "dpo-pairs"])
def test_a_profile_for_gpus_trains_with_a_small_model_and_short_rows(train_here, small, profile: str):
    data = dict.fromkeys(("data.train_files", "data.val_files"), "builtin:show-your-work")
    lengths = {"data.max_prompt_length": 64, "data.max_response_length": 24}
    lines = train_here([*small(profile, steps=2, **data, **lengths), "actor.optim.lr=1e-4"])
    assert [line["step"] for line in lines] == [0, 1, 2]
    role = "reward_model" if profile == "rm-pairs" else "actor"
    assert all(line[f"{role}/grad_norm"] > 0 for line in lines[1:])
    assert lines[2][f"val/loss/{SOURCE}"] != lines[0][f"val/loss/{SOURCE}"]
