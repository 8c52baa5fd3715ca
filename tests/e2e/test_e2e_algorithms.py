"""Every registered algorithm and every option of its loss runs through the real command, in a few steps."""

from pathlib import Path

import pytest

from tests.e2e.conftest import records, run_dir_of
from verl_core.config.catalogue import names
from verl_core.tracking.registry import check_known

EXTRA = {
    "ppo": ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "critic.ppo_epochs=2"],
    "grpo": ["actor.use_kl_loss=true", "actor.kl_loss_type=k2", "actor.entropy_coeff=0.01", "rollout.top_p=0.9"],
    "dr_grpo": ["actor.ppo_mini_batch_size=2", "actor.shuffle=true", "actor.ppo_max_token_len_per_gpu=256"],
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
    "gpg": [],
    "reinforce": ["actor.loss_agg_mode=seq-mean-token-sum"],
    "reinforce_plus_plus_baseline": ["actor.ppo_mini_batch_size=2"],
    "remax": ["actor.ppo_epochs=2"],
    "opo": ["actor.entropy_ctrl.type=target", "actor.entropy_ctrl.target=9", "actor.entropy_coeff=0.001"],
    "grpo_passk": ["actor.loss_agg_mode=token-sum"],
    "gdpo": ["algorithm.gdpo_reward_keys=[score,short]", "algorithm.gdpo_reward_weights=[1,0.5]"],
    "optimal_token_baseline": ["actor.ppo_mini_batch_size=2"],
    "tir_optimal_token_baseline": [],
    "pf_ppo": ["algorithm.pf_ppo.reweight_method=pow", "critic.ppo_epochs=2"],
}
WITH_CRITIC = {"ppo", "pf_ppo"}
FAMILIES = {"ppo", "grpo", "dr_grpo", "rloo", "gspo", "remax", "clip_cov"}
"""Whose runs are quick tests; the others differ from them in a function that tests/algorithms looks at."""


def test_each_algorithm_has_a_run_here():
    assert set(names("algorithm", built=True)) == set(EXTRA)


@pytest.mark.parametrize(
    "name", [name if name in FAMILIES else pytest.param(name, marks=pytest.mark.slow) for name in sorted(EXTRA)]
)
def test_a_few_steps(rlx, small, tmp_path: Path, name: str):
    reward = tmp_path / "reward.py"  # differs from answer to answer, so that every advantage has something to say
    reward.write_text(
        "def compute_score(data_source, solution_str, ground_truth, **_):\n"
        "    return {'score': len(solution_str) / 20, 'short': float(len(solution_str) < 9)}\n"
    )
    keys = {"trainer.logger": "[console,jsonl,tensorboard]", "reward.custom_reward_function.path": reward}
    words = small("smoke", steps=2, algorithm__name=name, **keys)
    if name == "dr_grpo":
        words.append("actor.ppo_micro_batch_size_per_gpu=null")
    done = rlx(*words, *EXTRA[name])
    assert done.returncode == 0, done.stderr
    lines = records(run_dir_of(tmp_path))
    assert [line["step"] for line in lines] == [0, 1, 2]
    check_known({key for line in lines for key in line} - {"step"})
    assert all(line["actor/grad_norm"] > 0 and line["actor/skipped_steps"] == 0 for line in lines[1:])
    assert ("critic/loss" in lines[1]) == (name in WITH_CRITIC)
    if name == "ppo":
        assert lines[1]["actor/reward_kl_penalty"] == pytest.approx(0, abs=1e-6)  # the reference is the start itself
        assert lines[2]["actor/reward_kl_penalty_coeff"] < lines[1]["actor/reward_kl_penalty_coeff"]
    if name == "grpo":
        assert lines[2]["actor/kl_loss"] > 0
    assert list((run_dir_of(tmp_path) / "tensorboard").iterdir())
