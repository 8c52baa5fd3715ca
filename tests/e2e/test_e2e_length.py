"""reward.length_shaping in a real run: what is trained on, what is logged, and what stays as it was."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import run_dir_of
from verl_core.config.schema import LengthShapingConfig
from verl_core.rewards.length import length_terms

LIMIT = 24  # tokens
VAL = "val/test_score/rlx/show-your-work"

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if len(solution_str) % 5 == 0:
        raise RuntimeError("not scored")
    return float(len(solution_str) % 2)
"""


@pytest.mark.slow
def test_terms_are_those_of_the_answers_to_a_prompt(train_here, small, tmp_path: Path):
    reward = tmp_path / "reward.py"
    reward.write_text(REWARD)
    keys = {"reward.custom_reward_function.path": reward, "trainer.log_rollouts": -1, "trainer.save_freq": 0}
    shaping = {"reward.length_shaping.form": "group", "reward.length_shaping.weight": 0.5}
    _, after = train_here(small("smoke", steps=1, trainer__experiment_name="shaped", **keys, **shaping))
    lines = (run_dir_of(tmp_path, "shaped") / "rollouts" / "step_1.jsonl").read_text().splitlines()
    answers = [json.loads(line) for line in lines]
    groups: dict[str, list[dict]] = {}
    for answer in answers:
        groups.setdefault(answer["group"], []).append(answer)
    assert any(answer["score_error"] for answer in answers) and not all(answer["score_error"] for answer in answers)
    for group in groups.values():
        scored = [a for a in group if not a["score_error"]]
        plain = [float(len(a["answer"]) % 2) for a in scored]
        lengths = [a["tokens"] for a in scored]
        terms = length_terms(lengths, [p > 0 for p in plain], LIMIT, LengthShapingConfig(form="group", weight=0.5))
        assert [a["reward"] for a in scored] == pytest.approx([p + t for p, t in zip(plain, terms, strict=True)])
        assert [a["reward_parts"]["length"] for a in scored] == pytest.approx(terms)
        assert all(a["reward"] == 0 for a in group if a["score_error"])
    assert after["reward/length/mean"] == pytest.approx(
        sum(a["reward_parts"]["length"] for a in answers) / len(answers)
    )
    assert 0 <= after[VAL] <= 1
