"""Every policy-gradient algorithm and every option of its loss runs for a few steps, and goes on after a stop as if
there had been none. One is started by the real command, the others in the process of the tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Records, records, run_dir_of, same_after_a_stop
from verl_core.config.algorithms import POLICY_FLOW
from verl_core.config.catalogue import entry, names
from verl_core.tracking.registry import check_known

EXTRA = {
    "ppo": ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "critic.ppo_epochs=2"],
    "grpo": ["actor.use_kl_loss=true", "actor.kl_loss_type=k2", "actor.entropy_coeff=0.01", "rollout.top_p=0.9"],
    "dr_grpo": [
        "actor.ppo_mini_batch_size=2",
        "actor.shuffle=true",
        "actor.ppo_micro_batch_size_per_gpu=null",
        "actor.ppo_max_token_len_per_gpu=256",
    ],
    "rloo": ["actor.ppo_epochs=2", "actor.loss_agg_mode=seq-mean-token-mean", "rollout.temperature=0.8"],
    "reinforce_plus_plus": ["actor.optim.optimizer=muon", "actor.optim.lr_scheduler_type=cosine"],
    "gspo": ["actor.ppo_mini_batch_size=2"],
    "gmpo": ["actor.ppo_epochs=2"],
    "cispo": ["actor.ppo_epochs=2", "actor.clip_ratio_high=0.5"],
    "sapo": ["actor.ppo_mini_batch_size=2", "actor.tau_neg=1.2"],
    "dppo": ["actor.policy_loss.loss_mode=dppo_kl", "actor.clip_ratio_c=20"],
    "clip_cov": ["actor.policy_loss.clip_cov_ratio=0.1", "actor.policy_loss.clip_cov_lb=0.01"],
    "kl_cov": ["actor.policy_loss.kl_cov_ratio=0.1", "actor.ppo_epochs=2"],
    "dro": ["actor.policy_loss.dro_beta=0.5"],
    "gpg": ["actor.use_kl_loss=true", "actor.kl_loss_type=full", "actor.kl_loss_coef=0.1"],
    "reinforce": [
        "actor.loss_agg_mode=seq-mean-token-sum",
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_penalty=full",
    ],
    "reinforce_plus_plus_baseline": ["actor.ppo_mini_batch_size=2"],
    "remax": ["actor.ppo_epochs=2"],
    "opo": ["actor.entropy_ctrl.type=target", "actor.entropy_ctrl.target=9", "actor.entropy_coeff=0.001"],
    "grpo_passk": ["actor.loss_agg_mode=token-sum"],
    "gdpo": ["algorithm.gdpo_reward_keys=[score,short]", "algorithm.gdpo_reward_weights=[1,0.5]"],
    "optimal_token_baseline": ["actor.ppo_mini_batch_size=2"],
    "tir_optimal_token_baseline": [],
    "dapo": ["reward.overlong_buffer.enable=true", "reward.overlong_buffer.len=4"],
    "vapo": ["actor.ppo_epochs=2"],
    "pf_ppo": ["algorithm.pf_ppo.reweight_method=pow", "critic.ppo_epochs=2"],
}
FAMILIES = ("ppo", "grpo", "gspo", "remax")
"""With a critic, with groups, with a loss of their own, with greedy answers."""
WITH_CRITIC = {"ppo", "pf_ppo", "vapo"}

LEAN = ["data.val_files=null", "data.train_max_samples=32", "trainer.save_freq=0", "trainer.parity=off"]
"""Without what the runs by the command show already; a stop saves all the same."""


@pytest.fixture
def words(small, tmp_path: Path) -> Callable[[str], list[str]]:
    """What follows `rlx` for two steps of an algorithm: `words("rloo")`."""
    reward = tmp_path / "reward.py"  # differs from answer to answer, so that every advantage has something to say
    reward.write_text(
        "def compute_score(data_source, solution_str, ground_truth, **_):\n"
        "    return {'score': len(solution_str) / 20, 'short': float(len(solution_str) < 9)}\n"
    )

    def made(name: str) -> list[str]:
        keys = {"algorithm.name": name, "reward.custom_reward_function.path": reward}
        return [*small("smoke", steps=2, **keys), *EXTRA[name]]

    return made


def test_each_algorithm_has_a_run_here():
    """Those of other flows have theirs beside this file."""
    assert {name for name in names("algorithm", built=True) if entry("algorithm", name).where == POLICY_FLOW} == set(
        EXTRA
    )


def test_a_run_by_the_command(rlx, words, tmp_path: Path):
    done = rlx(*words("ppo"), "trainer.logger=[console,jsonl,tensorboard]")
    assert done.returncode == 0, done.stderr
    holds("ppo", records(run_dir_of(tmp_path)))
    assert list((run_dir_of(tmp_path) / "tensorboard").iterdir())


@pytest.mark.parametrize("name", FAMILIES[1:])
def test_a_run_of_each_other_family(train_here, words, name: str):
    holds(name, train_here(words(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXTRA))
def test_a_stopped_run_goes_on_as_the_unbroken_one(train_here, words, name: str):
    holds(name, same_after_a_stop(train_here, [*words(name), *LEAN], until=1))


def holds(name: str, lines: Records) -> None:
    """What two steps of this algorithm log."""
    first, second = lines[-2:]
    assert (first["step"], second["step"]) == (1, 2)
    check_known({key for line in lines for key in line} - {"step"})
    assert all(line["actor/grad_norm"] > 0 and line["actor/skipped_steps"] == 0 for line in (first, second))
    assert ("critic/loss" in first) == (name in WITH_CRITIC)
    if name == "ppo":
        assert first["actor/reward_kl_penalty"] == pytest.approx(0, abs=1e-6)  # the reference is the start itself
        assert second["actor/reward_kl_penalty_coeff"] < first["actor/reward_kl_penalty_coeff"]
    if name == "grpo":
        assert second["actor/kl_loss"] > 0
