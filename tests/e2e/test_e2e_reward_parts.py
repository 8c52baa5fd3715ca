"""reward.scorers in a real run: what is trained on is the weighted sum of what is logged (case R18)."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import run_dir_of

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if len(solution_str) % 2:
        raise ValueError("odd answer")
    return {"score": 1.0, "acc": 0.0, "reason": "even"}
"""


@pytest.mark.slow
def test_parts_add_up_and_a_part_that_fails_is_counted(train_here, small, tmp_path: Path):
    file = tmp_path / "reward.py"
    file.write_text(REWARD)
    keys = {
        "reward.custom_reward_function.path": file,
        "reward.scorers": "{task: 2, show_your_work: 1, repetition: {weight: 0, n: 2}}",
        "trainer.log_rollouts": -1,
        "trainer.save_freq": 0,
    }
    _, step = train_here(small("smoke", steps=1, trainer__experiment_name="parts", **keys))
    text = (run_dir_of(tmp_path, "parts") / "rollouts" / "step_1.jsonl").read_text()
    answers = [json.loads(line) for line in text.splitlines()]
    for answer in answers:
        odd, parts = len(answer["answer"]) % 2 == 1, answer["reward_parts"]
        assert (answer["failures"]["task"] is not None) == odd and answer["failures"]["show_your_work"] is None
        assert answer["score_error"] is None and parts["task"] == 1.0 - odd
        assert answer["reward"] == 2 * parts["task"] + parts["show_your_work"]
        assert odd or (answer["reason"], answer["acc"]) == ("even", 0.0)
    assert step["reward/task/failed"] == sum(len(answer["answer"]) % 2 for answer in answers)
    assert step["reward/failed"] == step["reward/show_your_work/failed"] == 0
    logged = 2 * step["reward/task/mean"] + step["reward/show_your_work/mean"]
    assert step["critic/score/mean"] == pytest.approx(logged, rel=1e-6)
    assert "reward/repetition/mean" in step
