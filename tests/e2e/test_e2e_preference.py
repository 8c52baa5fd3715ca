"""Every algorithm that learns from preferences runs for a few steps, and goes on after a stop as if there had been
none; one by the real command, the others in the process of the tests."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import records, run_dir_of, same_after_a_stop
from verl_core.config.catalogue import entry, names
from verl_core.tracking.registry import check_known

SOURCE = "rlx/show-your-work"
EXTRA = {
    "dpo": ["algorithm.preference.label_smoothing=0.1", "actor.ppo_micro_batch_size_per_gpu=2"],
    "ipo": ["actor.share_prompt=true", "algorithm.preference.ref_update_freq=2"],
    "kto": ["algorithm.preference.undesirable_weight=2", "actor.ppo_epochs=2"],
    "orpo": ["actor.ppo_micro_batch_size_per_gpu=null", "actor.ppo_max_token_len_per_gpu=96"],
    "simpo": ["actor.ppo_mini_batch_size=2", "actor.shuffle=true"],
    "online_dpo": ["algorithm.preference.loss=ipo", "rollout.temperature=0.8"],
    "sppo": ["actor.ppo_epochs=2", "rollout.top_p=0.9"],
    "spin": ["algorithm.preference.ref_update_freq=2", "rollout.n=1"],
}
LEAN = ["data.train_max_samples=32", "trainer.save_freq=0", "trainer.parity=off", "trainer.test_freq=0"]


@pytest.fixture
def words(small, tmp_path: Path):
    """What follows `rlx` for three steps of an algorithm."""
    reward = tmp_path / "reward.py"  # differs from answer to answer, so that there is a best and a worst
    reward.write_text(
        "def compute_score(data_source, solution_str, ground_truth, **_):\n    return len(solution_str)\n"
    )

    def made(name: str) -> list[str]:
        reads = "dataset" in entry("algorithm", name).needs
        scorer = {} if reads else {"reward.custom_reward_function.path": reward}
        return [*small("smoke-dpo" if reads else "smoke", steps=3, **{"algorithm.name": name}, **scorer), *EXTRA[name]]

    return made


def test_each_algorithm_has_a_run_here():
    preset = "algorithm.preference.loss"
    assert {name for name in names("algorithm", built=True) if preset in entry("algorithm", name).options} == set(EXTRA)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTRA)
def test_a_stopped_run_goes_on_as_the_unbroken_one(train_here, words, name: str):
    holds(name, same_after_a_stop(train_here, [*words(name), *LEAN], until=2))


@pytest.mark.slow
def test_answers_without_a_partner(train_here, small, tmp_path: Path):
    """Wanted and unwanted ones in no order and of no equal number."""
    file = tmp_path / "labelled.jsonl"
    rows = [{"prompt": f"{n} and 2?", "completion": f"#### {n + 2 * (n % 3)}", "label": n % 3 == 1} for n in range(8)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = small("smoke-dpo", steps=3, algorithm__name="kto", data__train_files=file, data__val_files=file)
    lines = train_here([*words, "actor.optim.lr_warmup_steps=0"])
    assert lines[-1]["val/loss/labelled"] < lines[0]["val/loss/labelled"] == pytest.approx(0.5)
    assert {"actor/rewards/chosen", "actor/rewards/rejected"} <= lines[-1].keys()


@pytest.mark.slow
def test_pairs_by_the_command_and_what_they_taught(rlx, small, tmp_path: Path):
    done = rlx(*small("smoke-dpo", steps=3, trainer__test_freq=3), "actor.optim.lr_warmup_steps=0")
    assert done.returncode == 0, done.stderr
    lines = records(run_dir_of(tmp_path))
    holds("dpo", lines)
    before, after = lines[0], lines[-1]
    assert before[f"val/loss/{SOURCE}"] == pytest.approx(0.693147, rel=1e-5) and before[f"val/acc/{SOURCE}"] == 0
    assert after[f"val/loss/{SOURCE}"] < before[f"val/loss/{SOURCE}"] and after[f"val/margin/{SOURCE}"] > 0
    done = rlx("eval", str(run_dir_of(tmp_path)), "--json", "data.val_max_samples=8")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def holds(name: str, lines: list[dict]) -> None:
    """What three steps of this algorithm log."""
    steps = lines[-3:]
    assert [line["step"] for line in steps] == [1, 2, 3]
    check_known({key for line in lines for key in line} - {"step"})
    assert all(line["actor/grad_norm"] > 0 and line["actor/skipped_steps"] == 0 for line in steps)
    assert all(0 <= line["actor/rewards/accuracy"] <= 1 for line in steps)
    assert all(("critic/score/mean" in line) == (name in ("online_dpo", "sppo", "spin")) for line in steps)
