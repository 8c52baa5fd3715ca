"""reward.overlong_buffer in real runs: what is trained on, what is logged, and that off means off."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import run_dir_of

LIMIT, BUFFER, FACTOR = 24, 10, 0.5  # tokens, tokens, reward
VAL = "val/test_score/rlx/show-your-work"

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0
"""


@pytest.fixture
def words(small, tmp_path: Path):
    """Words of a run of one step whose every answer scores 1 and is written down."""
    reward = tmp_path / "reward.py"
    reward.write_text(REWARD)

    def made(name: str, **more: object) -> list[str]:
        keys = {"reward.custom_reward_function.path": reward, "trainer.log_rollouts": -1, "trainer.save_freq": 0}
        return small("smoke", steps=1, trainer__experiment_name=name, **keys, **more)

    return made


def rollouts(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "rollouts" / "step_1.jsonl").read_text().splitlines()]


def test_answers_near_the_limit_lose_reward_and_validation_does_not(train_here, words, tmp_path: Path):
    buffer = f"{{enable: true, len: {BUFFER}, penalty_factor: {FACTOR}}}"
    before, after = train_here(words("on", reward__overlong_buffer=buffer))
    answers = rollouts(run_dir_of(tmp_path, "on"))
    lengths = [answer["tokens"] for answer in answers]
    assert min(lengths) <= LIMIT - BUFFER < max(lengths), "the answers should be of both kinds"
    penalties = [FACTOR * min(0.0, (LIMIT - BUFFER - n) / BUFFER) for n in lengths]
    for answer, penalty in zip(answers, penalties, strict=True):
        assert answer["reward"] == pytest.approx(1.0 + penalty)
        assert answer["reward_parts"]["overlong"] == pytest.approx(penalty)
    mean = sum(penalties) / len(penalties)
    assert after["critic/score/mean"] == pytest.approx(1.0 + mean, rel=1e-6)
    assert after["reward/overlong/mean"] == pytest.approx(mean, rel=1e-6)
    assert before[VAL] == after[VAL] == 1.0


def test_a_block_that_is_off_changes_nothing(train_here, words, tmp_path: Path):
    lines = train_here(words("off", reward__overlong_buffer="{enable: false, len: 0}"))
    assert {answer["reward"] for answer in rollouts(run_dir_of(tmp_path, "off"))} == {1.0}
    assert not [name for name in lines[1] if "overlong" in name]
