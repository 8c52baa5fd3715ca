"""Keys of teachers and of PRIME's reward model: what is refused, what has no effect, which roles there are."""

import pytest

from verl_core.config.compose import resolve
from verl_core.config.effective import effective, extras, role_pools, trained_roles
from verl_core.config.errors import UserError
from verl_core.config.model_roles import model_of, role_settings

OPD = ["algorithm.name=opd", "distillation.teacher_models.one.model_path=teacher"]
PRIME = ["algorithm.name=prime"]
ONE, TWO = "distillation.teacher_models.one", "distillation.teacher_models.two"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm.name=opd"], r"name='opd'.* needs a teacher: set distillation.teacher_models.NAME.model_path"),
        (["algorithm.name=opd", f"{ONE}.key=words"], rf"set {ONE}.model_path to the teacher's folder"),
        ([*OPD, f"{TWO}.model_path=other"], rf"{ONE}.key: of several teachers each needs.*\n.*{TWO}.key"),
        ([*OPD, f"{ONE}.key=a", f"{TWO}.model_path=b", f"{TWO}.key=a"], r"2 teachers have the key 'a'"),
        ([*OPD, f"{ONE}.model_path=builtin:show-your-work"], r"name a phase behind it: builtin:show-your-work/skill, "),
        ([*OPD, f"{ONE}.model_path=builtin:other/skill"], r"but model.path is builtin:show-your-work"),
        ([*OPD, "distillation.loss_mode=forward_kl_topk"], r"'forward_kl_topk'.*set .*use_policy_gradient=false"),
        ([*OPD, "distillation.use_policy_gradient=false"], r"loss_mode='k1'.* expected gradient is 0"),
        ([*OPD, "distillation.use_task_rewards=true"], r"algorithm opd names no advantage estimator"),
        ([*OPD, "critic.enable=true"], r"critic.enable=true.*opd'.* has no use for a critic's values"),
        ([*OPD, "distillation.coef=0"], r"distillation.coef=0.0 .*is not in \(0, inf\)"),
        ([*OPD, "distillation.log_prob_min_clamp=1"], r"log_prob_min_clamp=1.0 .*is not in \(-inf, 0\)"),
        ([*OPD, "teacher.pool=far"], r"teacher.pool='far'.*no such pool; cluster.pools has main"),
        ([*PRIME, "rollout.n=1"], r"rollout.n=1.*prime compares the answers of one prompt"),
        ([*PRIME, "algorithm.prime.accuracy_lower_bound=0.9"], r"lower_bound=0.9.* is above .*upper_bound=0.8"),
        (
            [*PRIME, "algorithm.prime.process_coef=0", "algorithm.prime.outcome_coef=0"],
            r"process_coef=0.0.*outcome_coef=0.0.*there is nothing to learn from",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(words, said):
    with pytest.raises(UserError, match=said):
        effective(resolve("smoke", words).config)


@pytest.mark.parametrize(
    ("words", "key", "switch"),
    [
        (["distillation.coef=2"], "distillation.coef", "algorithm.name=opd"),
        (["teacher.log_prob_micro_batch_size_per_gpu=4"], "teacher.log_prob_micro_batch_size_per_gpu", "name=opd"),
        ([*OPD, "teacher.param_offload=false"], "teacher.param_offload", "trainer.device=auto or cuda"),
        ([*OPD, "distillation.topk=4"], "distillation.topk", "distillation.loss_mode=forward_kl_topk"),
        ([*OPD, "algorithm.adv_estimator=grpo"], "algorithm.adv_estimator", "distillation.use_task_rewards=true"),
        ([*OPD, "algorithm.use_kl_in_reward=true"], "algorithm.use_kl_in_reward", "distillation.use_task_rewards=true"),
        (["algorithm.prime.beta=2"], "algorithm.prime.beta", "algorithm.name=prime"),
        ([*PRIME, "algorithm.adv_estimator=grpo"], "algorithm.adv_estimator", "algorithm.name=grpo"),
    ],
)
def test_what_has_no_effect_is_said(words, key, switch):
    (line,) = [line for line in resolve("smoke", words).warnings if line.startswith(f"{key} ")]
    assert "has no effect" in line and switch in line


def test_teachers_are_roles_that_are_not_trained():
    config = effective(resolve("smoke", [*OPD, f"{ONE}.key=a", f"{TWO}.model_path=b", f"{TWO}.key=b"]).config)
    assert role_pools(config) == dict.fromkeys(("actor", "rollout", "teacher_one", "teacher_two"), "main")
    assert trained_roles(config) == ("actor",) and extras(config) == ("fsdp",)
    settings = role_settings(config, "teacher_one")
    assert settings.fsdp_config.param_offload and settings.ppo_micro_batch_size_per_gpu == 128
    assert [model_of(config, role, "student") for role in ("actor", "teacher_two")] == ["student", "b"]


def test_a_builtin_teacher_lies_where_the_warm_up_leaves_it():
    config = effective(resolve("smoke", [*OPD, f"{ONE}.model_path=builtin:show-your-work/skill"]).config)
    assert model_of(config, "teacher_one", "run/warmup") == "run/warmup/after/skill"


def test_a_teacher_has_a_pool_of_its_own_where_it_is_given_one():
    words = [*OPD, "cluster.pools.main.gpus=2", "cluster.pools.far.gpus=4", "teacher.pool=far"]
    words += ["actor.ulysses_sequence_parallel_size=2", "actor.fsdp_config.fsdp_size=2"]
    config = effective(resolve("smoke", words).config)
    assert role_pools(config)["teacher_one"] == "far"
    settings = role_settings(config, "teacher_one")
    assert (settings.ulysses_sequence_parallel_size, settings.fsdp_config.fsdp_size) == (1, -1)


def test_the_reward_model_has_the_actors_settings_and_its_own_optimizer():
    config = effective(resolve("smoke", [*PRIME, "algorithm.prime.optim.lr=3e-5"]).config)
    assert role_pools(config)["reward_model"] == "main" and trained_roles(config) == ("actor", "reward_model")
    settings = role_settings(config, "reward_model")
    assert settings.optim.lr == 3e-5 and settings.fsdp_config == config.actor.fsdp_config


def test_verls_keys_are_read():
    words = [
        "algorithm.name=opd",
        f"{ONE}.model_path=teacher",
        "distillation.distillation_loss.loss_mode=k3",
        "distillation.distillation_loss.use_policy_gradient=true",
        "distillation.teacher_key=data_source",
    ]
    resolved = resolve("smoke", words)
    assert resolved.config.distillation.loss_mode == "k3"
    assert "distillation.distillation_loss.loss_mode is distillation.loss_mode here" in resolved.notes
    with pytest.raises(UserError, match=r"distillation.enabled.*algorithm.name=opd distils"):
        resolve("smoke", ["distillation.enabled=true"])
