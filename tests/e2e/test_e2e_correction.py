"""An engine that rounds otherwise than the trainer, in whole runs: measured, weighed and rejected."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import run_dir_of
from verl_core.tracking.registry import check_known

ENGINE = {"rollout__dtype": "bfloat16", "trainer__val_before_train": "false", "data__val_files": "null"}
WEIGHED = (
    "algorithm.rollout_correction.rollout_is=token",
    "algorithm.rollout_correction.rollout_is_threshold=0.5_1.005",
    "algorithm.rollout_correction.rollout_is_batch_normalize=true",
    "algorithm.rollout_correction.rollout_rs=seq_mean_k1,token_k2",
    "algorithm.rollout_correction.rollout_rs_threshold=1.5,0.0001",
)


LENGTH = "def compute_score(data_source, solution_str, ground_truth, **_):\n    return len(solution_str) / 20\n"


def run(train_here, tmp_path: Path, words: list[str], *more: str, name: str = "run") -> list[dict]:
    (reward := tmp_path / "reward.py").write_text(LENGTH)  # differs from answer to answer: every group has advantages
    train_here([*words, f"reward.custom_reward_function.path={reward}", *more])
    text = (run_dir_of(tmp_path, name) / "metrics.jsonl").read_text()
    lines = [line for line in map(json.loads, text.splitlines()) if line["step"]]
    check_known({key for line in lines for key in line} - {"step"})
    for line in lines:
        assert 0 < line["rollout_corr/k3_kl"] < 0.01 < line["training/rollout_logp_diff_max"] < 2
        assert 0.9 < line["training/rollout_actor_probs_pearson_corr"] < 1 and line["response/nan_tokens"] == 0
    return lines


def test_weights_and_rejection_with_old_log_probs_of_the_trainer(train_here, small, tmp_path: Path):
    lines = run(train_here, tmp_path, small("smoke", steps=2, **ENGINE), *WEIGHED)
    for line in lines:
        assert line["timing_s/old_log_prob"] > 0
        assert 0 < line["rollout_corr/rollout_is_oob_ratio"] < 1 == pytest.approx(line["rollout_corr/ppl_ratio"], 0.1)
        assert line["rollout_corr/rollout_is_max"] <= 1.005 and line["rollout_corr/rollout_is_batch_norm_factor"] < 1
        assert 0 < line["rollout_corr/rollout_rs_masked_fraction"] < 1
        assert line["actor/grad_norm"] > 0 and line["actor/skipped_steps"] == 0


def test_rejection_with_old_log_probs_of_the_engine(train_here, small, tmp_path: Path):
    """auto: the gate measures far less than a quarter of the clip range. A checkpoint keeps the decision."""
    keys = (
        "algorithm.rollout_correction.rollout_rs=token_k1",
        "algorithm.rollout_correction.rollout_rs_threshold=1.01",
    )
    lines = run(train_here, tmp_path, small("smoke", steps=2, **ENGINE, actor__ppo_mini_batch_size=2), *keys)
    for line in lines:
        assert "timing_s/old_log_prob" not in line and 0 < line["rollout_corr/rollout_rs_token_k1_masked_fraction"] < 1
    saved = run_dir_of(tmp_path) / "checkpoints" / "global_step_2" / "trainer.json"
    assert json.loads(saved.read_text())["old_from_rollout"] is True


@pytest.mark.slow
@pytest.mark.parametrize("keys", [WEIGHED, (*WEIGHED[3:], "rollout.old_log_prob=rollout")], ids=["trainer", "engine"])
def test_two_ranks_correct_as_one_does(train_here, small, tmp_path: Path, keys):
    one, two = (
        run(
            train_here,
            tmp_path,
            small("smoke", steps=1, **ENGINE, trainer__experiment_name=name),
            *keys,
            *more,
            name=name,
        )
        for name, more in (("one", []), ("two", ["cluster.nproc=2", "actor.ppo_micro_batch_size_per_gpu=3"]))
    )
    names = [name for name in one[0] if name.startswith("rollout_corr/")]
    for name in ["actor/pg_loss", "actor/grad_norm", *names]:
        assert one[0][name] == pytest.approx(two[0][name], rel=2e-4, abs=1e-6), name
