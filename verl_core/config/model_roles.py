"""Roles beside actor, reference and critic: teachers, the language model that PRIME trains to judge tokens, and a
frozen reward model that scores answers."""

from dataclasses import replace
from pathlib import Path

from verl_core.config.algorithms import POLICY_FLOW
from verl_core.config.catalogue import entry
from verl_core.config.schema import ActorConfig, CriticConfig, FsdpConfig, RlxConfig, TeacherModelConfig

BUILTIN = "builtin:"
REWARD_MODEL_PATH = "reward.reward_model.path"
SCORING = "scoring_model"
"""The role of reward.reward_model; `reward_model` is one that is trained."""
AFTER = "after"
"""Folder below a warmed-up model's with the model as it was after a phase, by the phase's name."""


def teachers(config: RlxConfig) -> dict[str, TeacherModelConfig]:
    """The teachers by role; none where the algorithm learns from none."""
    taught = "teacher" in entry("algorithm", config.algorithm.name).needs
    return {f"teacher_{name}": own for name, own in config.distillation.teacher_models.items()} if taught else {}


def scores_by_model(config: RlxConfig) -> bool:
    """Whether a frozen reward model scores the answers that the run generates."""
    generates = "dataset" not in entry("algorithm", config.algorithm.name).needs
    return generates and "reward_model" in config.reward.scorers


def frozen(config: RlxConfig) -> tuple[str, ...]:
    """Roles with models of their own that are never trained."""
    return (*teachers(config), *([SCORING] if scores_by_model(config) else []))


def frozen_paths(config: RlxConfig) -> dict[str, str]:
    """Folder or hub name of the frozen roles' models, and of a judge that is no endpoint, by the key that gives it."""
    reward = config.reward
    scoring = {REWARD_MODEL_PATH: str(reward.reward_model.path)} if scores_by_model(config) else {}
    if "judge" in reward.scorers and reward.judge.engine is not None:
        scoring["reward.judge.path"] = str(reward.judge.path)
    return scoring | {
        f"distillation.teacher_models.{role.removeprefix('teacher_')}.model_path": str(teacher.model_path)
        for role, teacher in teachers(config).items()
    }


def shares_prompts(config: RlxConfig, role: str) -> bool:
    """Whether the role computes once what answers to a prompt begin with; conversations are scored one by one."""
    return config.actor.share_prompt and role != SCORING


def trains_process_rewards(config: RlxConfig) -> bool:
    """Whether a language model learns beside the actor what single tokens are worth."""
    return "process_rewards" in entry("algorithm", config.algorithm.name).needs


def estimates_advantages(config: RlxConfig) -> bool:
    """Whether an advantage estimator makes of rewards what the run learns from."""
    algorithm = entry("algorithm", config.algorithm.name)
    if teachers(config):
        return config.distillation.use_task_rewards
    own = "algorithm.adv_estimator" in (algorithm.options or {})  # a flow of a user's that presets one reads it
    return (own or algorithm.where in (None, POLICY_FLOW)) and "dataset" not in algorithm.needs


def role_settings(config: RlxConfig, role: str) -> ActorConfig | CriticConfig:
    """How a role of an effective configuration computes and is trained: its own section, or the actor's with what is
    its own. A frozen one is cut over its whole pool, whatever the actor is."""
    actor, teacher, prime, scoring = config.actor, config.teacher, config.algorithm.prime, config.reward.reward_model
    if role == "critic":
        return config.critic
    if role == "reward_model" and trains_process_rewards(config):
        return replace(actor, pool=prime.pool or actor.pool, optim=prime.optim)
    if role in teachers(config):
        compute = actor.fsdp_config
        return ActorConfig(
            pool=teacher.pool or actor.pool,
            ppo_micro_batch_size_per_gpu=teacher.log_prob_micro_batch_size_per_gpu,
            ppo_max_token_len_per_gpu=teacher.log_prob_max_token_len_per_gpu,
            fsdp_config=FsdpConfig(
                dtype=compute.dtype,
                use_torch_compile=compute.use_torch_compile,
                param_offload=teacher.param_offload,
            ),
        )
    if role == SCORING:
        return ActorConfig(
            pool=scoring.pool or actor.pool,
            ppo_micro_batch_size_per_gpu=scoring.micro_batch_size_per_gpu,
            ppo_max_token_len_per_gpu=scoring.max_token_len_per_gpu,
            fsdp_config=FsdpConfig(
                dtype=scoring.dtype,
                use_torch_compile=actor.fsdp_config.use_torch_compile,
                param_offload=scoring.param_offload,
            ),
        )
    return actor


def model_of(config: RlxConfig, role: str, folder: str) -> str:
    """The folder or hub name that a role's weights start from; `folder` is model.path's."""
    if (teacher := teachers(config).get(role)) is not None:
        path = str(teacher.model_path)
        return str(Path(folder, AFTER, path.partition("/")[2])) if path.startswith(BUILTIN) else path
    if role == SCORING:
        return str(config.reward.reward_model.path)
    own = role == "critic" and config.critic.model.path != config.model.path
    return str(config.critic.model.path) if own else folder


def taught_phases(config: RlxConfig) -> set[str]:
    """Phases of the warm-up after which the builtin model is a teacher."""
    paths = [str(teacher.model_path) for teacher in teachers(config).values()]
    return {path.partition("/")[2] for path in paths if path.startswith(BUILTIN)}
