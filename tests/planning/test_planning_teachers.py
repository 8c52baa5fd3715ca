"""What teachers and PRIME's reward model add to a plan."""

import pytest

from tests.planning.planning_examples import estimated, phase
from verl_core.config.errors import UserError
from verl_core.planning.result import Plan

TEACHER = "distillation.teacher_models.qwen-7b.model_path"


def planned(profile: str, *words: str) -> Plan:
    return estimated(profile, *words, gpu="H100")


def test_a_teacher_is_stored_once_in_half_precision_and_waits_in_host_memory():
    there = planned("opd-qwen")
    stays = planned("opd-qwen", "teacher.param_offload=false")
    asked = phase(there, "teacher_qwen-7b", "log-prob")
    assert asked.memory.parameters == pytest.approx(2 * 7.62e9, rel=0.01)
    assert not asked.memory.gradients and not asked.memory.optimizer
    update = phase(there, "actor", "update"), phase(stays, "actor", "update")
    assert update[1].memory.others - update[0].memory.others == pytest.approx(asked.memory.parameters)
    assert there.pools[0].host - stays.pools[0].host == pytest.approx(asked.memory.parameters)
    assert there.checkpoint == stays.checkpoint == pytest.approx(12 * 0.494e9, rel=0.01)
    assert there.models["teacher_qwen-7b"]["trained"] == 0


def test_the_likeliest_tokens_take_logits_of_plain_torch():
    estimates = planned("opd-qwen")
    likeliest = planned("opd-qwen", "distillation.loss_mode=forward_kl_topk", "distillation.use_policy_gradient=false")
    for role, name, bytes_a_logit in (("actor", "update", 16), ("teacher_qwen-7b", "log-prob", 12)):
        more = phase(likeliest, role, name).memory.logits - phase(estimates, role, name).memory.logits
        assert more == pytest.approx(bytes_a_logit * (1 << 27)), role


def test_a_teacher_on_a_pool_of_its_own_works_there():
    words = ["cluster.pools.main.gpus=1", "cluster.pools.far.gpus=2", "teacher.pool=far"]
    found = planned("opd-qwen", *words)
    asked = phase(found, "teacher_qwen-7b", "log-prob")
    assert asked.pool == "far" and asked.memory.parameters == pytest.approx(7.62e9, rel=0.01)


def test_a_teacher_that_is_not_known_is_named():
    with pytest.raises(UserError, match=r"distillation.teacher_models.qwen-7b.model_path=nobody"):
        planned("opd-qwen", f"{TEACHER}=nobody")


def test_primes_reward_model_is_trained_and_judges_twice():
    words = ["algorithm.name=prime", "rollout.n=4"]
    found, plain = planned("gsm8k-grpo", *words), planned("gsm8k-grpo", "rollout.n=4", "actor.use_kl_loss=false")
    update = phase(found, "reward_model", "update")
    assert update.memory.optimizer == pytest.approx(phase(found, "actor", "update").memory.optimizer)
    assert {p.role for p in found.phases if p.phase == "log-prob"} >= {"reward_model", "reward_model ref"}
    assert found.checkpoint == pytest.approx(2 * plain.checkpoint)
