"""What advantage estimators, PF-PPO and the entropy controller ask of a configuration."""

import re

import pytest

from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.verl_import import import_script

GDPO = ["algorithm.name=gdpo", "algorithm.gdpo_reward_keys=[score,format]"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithm.name=gdpo"], r"set algorithm.gdpo_reward_keys"),
        ([*GDPO, "algorithm.gdpo_reward_weights=[1.0]"], r"gdpo_reward_weights.*1 weights for 2 gdpo_reward_keys"),
        (["algorithm.name=gdpo", "algorithm.gdpo_reward_keys=[score,score]"], "names a reward twice"),
        (["algorithm.name=pf_ppo", "rollout.n=1"], r"rollout.n=1 .*use_pf_ppo draws among .* at least 2"),
        (["algorithm.name=opo", "rollout.n=1"], r"rollout.n=1 .*opo compares"),
        (["algorithm.name=optimal_token_baseline", "rollout.n=1"], r"rollout.n=1 .*optimal_token_baseline compares"),
        (["algorithm.name=ppo", "algorithm.lam_alpha=0"], "lam_alpha"),
        (["actor.entropy_ctrl.delta=0"], "delta"),
        (["algorithm.adv_estimator=decoupled_gae", "critic.enable=false"], "decoupled_gae needs a critic's values"),
    ],
)
def test_refused(words, message):
    with pytest.raises(UserError, match=message):
        resolve("smoke", words)


@pytest.mark.parametrize("words", [GDPO, ["algorithm.name=remax", "rollout.n=1"], ["algorithm.name=pf_ppo"]])
def test_accepted_without_a_word(words):
    assert resolve("smoke", words).warnings == []


@pytest.mark.parametrize(
    ("words", "switch"),
    [
        (["algorithm.lam_critic=0.9"], "algorithm.adv_estimator=decoupled_gae"),
        (["algorithm.lam_alpha=0.1"], "algorithm.adv_estimator=decoupled_gae"),
        (["algorithm.adv_estimator=decoupled_gae", "algorithm.lam_alpha=0.1", "algorithm.lam=0.9"], "lam_alpha=null"),
        (["algorithm.gdpo_reward_keys=[score]"], "algorithm.adv_estimator=gdpo"),
        (["algorithm.pf_ppo.weight_pow=3"], "algorithm.use_pf_ppo=true"),
        (["actor.entropy_ctrl.target=0.3"], "actor.entropy_ctrl.type=target"),
        ([*GDPO, "algorithm.use_kl_in_reward=true"], "algorithm.adv_estimator=grpo"),
        (["algorithm.name=opo", "algorithm.norm_adv_by_std_in_grpo=true"], "algorithm.adv_estimator=grpo or"),
    ],
)
def test_no_effect_is_a_warning_with_the_switch(words, switch):
    warnings = resolve("smoke", words).warnings
    assert len(warnings) == 1 and switch in warnings[0] and "no effect" in warnings[0]


def test_the_presets():
    vapo = effective(resolve("smoke", ["algorithm.name=vapo"]).config)
    assert (vapo.algorithm.adv_estimator, vapo.algorithm.lam_alpha, vapo.critic.enable) == ("decoupled_gae", 0.05, True)
    assert (vapo.actor.clip_ratio_low, vapo.actor.clip_ratio_high) == (0.2, 0.28)
    filtered = effective(resolve("smoke", ["algorithm.name=pf_ppo"]).config)
    assert (filtered.algorithm.adv_estimator, filtered.algorithm.use_pf_ppo) == ("gae", True)
    assert effective(resolve("smoke").config).algorithm.use_pf_ppo is False


def test_verls_keys_are_read():
    launch = "python3 -m verl.trainer.main_ppo data.train_files=a data.val_files=b actor_rollout_ref.rollout.n=4 "
    launch += "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
    gdpo = import_script(
        launch + "algorithm.adv_estimator=gdpo algorithm.gdpo_reward_keys='[score,format]' "
        "+algorithm.gdpo_reward_weights='[1.0,0.5]'",
        "x.sh",
    ).text
    assert re.search(r"name: gdpo\n", gdpo) and "gdpo_reward_keys: [score, format]" in gdpo.replace('"', "")
    pf_ppo = import_script(
        launch + "algorithm.use_pf_ppo=True algorithm.pf_ppo.reweight_method=max_min algorithm.pf_ppo.weight_pow=3.0",
        "x.sh",
    ).text
    assert "name: pf_ppo" in pf_ppo and "reweight_method: max_min" in pf_ppo
