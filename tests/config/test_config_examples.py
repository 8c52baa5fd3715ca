"""What learning from the answers of a data set asks of a configuration, and what has no effect on it."""

import pytest

from verl_core.config.compose import resolve
from verl_core.config.effective import (
    answers_a_row,
    effective,
    learner,
    role_pools,
    trained_roles,
    uses_reference,
    uses_rollout,
)
from verl_core.config.errors import UserError

NO_POLICY_LOSS = "algorithm.name=grpo or another that has a policy loss"


@pytest.mark.parametrize(
    ("profile", "role", "answers"), [("smoke-sft", "actor", 1), ("smoke-rm", "reward_model", 2), ("smoke", "actor", 8)]
)
def test_what_is_trained_and_on_how_many_answers_of_a_row(profile, role, answers):
    e = effective(resolve(profile).config)
    assert (learner(e), trained_roles(e), answers_a_row(e)) == (role, (role,), answers)
    assert set(role_pools(e)) == {role, *(["rollout"] if uses_rollout(e) else [])}
    assert not uses_reference(e)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.lora_rank=8"], "model.lora_rank=8 .*trains its model whole; set it to 0"),
        (
            ["actor.ppo_micro_batch_size_per_gpu=null", "actor.ppo_max_token_len_per_gpu=88"],
            "ppo_max_token_len_per_gpu=88 .*one token behind the longest sequence; set 89 or more",
        ),
        (["actor.ppo_mini_batch_size=1", "cluster.nproc=3"], "ppo_mini_batch_size=1 .* x 2 of a row = 2 sequences"),
    ],
)
def test_refused_of_a_reward_model(words, said):
    with pytest.raises(UserError, match=said):
        resolve("smoke-rm", words)


@pytest.mark.parametrize("profile", ["smoke-sft", "smoke-rm"])
@pytest.mark.parametrize(
    ("word", "switch"),
    [
        ("rollout.temperature=0.5", "algorithm.name=grpo or another that generates"),
        ("reward.num_workers=2", "algorithm.name=grpo or another that generates"),
        ("trainer.parity=off", "algorithm.name=grpo or another that generates"),
        ("trainer.log_rollouts=3", "algorithm.name=grpo or another that generates"),
        ("actor.clip_ratio=0.3", NO_POLICY_LOSS),
        ("actor.loss_agg_mode=seq-mean-token-mean", NO_POLICY_LOSS),
        ("actor.use_kl_loss=true", NO_POLICY_LOSS),
        ("actor.entropy_coeff=0.1", NO_POLICY_LOSS),
        ("algorithm.gamma=0.9", "algorithm.adv_estimator=gae"),
    ],
)
def test_keys_of_generating_have_no_effect(profile, word, switch):
    key = word.split("=")[0]
    warnings = [line for line in resolve(profile, [word]).warnings if key in line]
    assert len(warnings) == 1 and switch in warnings[0]


def test_where_demonstrations_stand_matters_to_those_that_read_them():
    for profile in ("smoke", "smoke-rm"):
        (warning,) = resolve(profile, ["data.messages_key=dialogue"]).warnings
        assert "data.messages_key (command line) has no effect; for that set algorithm.name=sft" in warning
    for profile in ("smoke-sft", "smoke-spin"):
        assert not resolve(profile, ["data.messages_key=dialogue", "data.response_key=answer"]).warnings


@pytest.mark.parametrize("profile", ["smoke-dpo", "smoke-sppo", "smoke-spin", "smoke-opd", "smoke-prime"])
def test_an_estimator_that_is_not_asked_brings_no_critic(profile):
    resolved = resolve(profile, ["algorithm.adv_estimator=gae"])
    assert not effective(resolved.config).critic.enable
    assert ["algorithm.adv_estimator (command line) has no effect" in line for line in resolved.warnings] == [True]
