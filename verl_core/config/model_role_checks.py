"""What teachers and PRIME's reward model ask of other keys."""

from collections import Counter
from collections.abc import Iterator

from verl_core.config.key_checks import Said
from verl_core.config.model_roles import BUILTIN, estimates_advantages, teachers, trains_process_rewards
from verl_core.config.schema import RlxConfig
from verl_core.config.schema_distillation import FORWARD_TOPK

NO_PULL = ("kl", "k1")  # estimators whose expected gradient is 0


def model_role_faults(said: Said, e: RlxConfig) -> Iterator[str]:
    """Of an effective configuration."""
    if e.algorithm.name == "opd" or teachers(e):
        yield from _teachers(said, e)
        yield from _distillation(said, e)
    if trains_process_rewards(e):
        yield from _prime(said, e)
    if e.critic.enable and not estimates_advantages(e):
        yield f"{said('critic.enable')}: {said('algorithm.name')} has no use for a critic's values"


def _teachers(said: Said, e: RlxConfig) -> Iterator[str]:
    asked = e.distillation.teacher_models
    if not asked:
        yield f"{said('algorithm.name')} needs a teacher: set distillation.teacher_models.NAME.model_path"
    for name, teacher in asked.items():
        key = f"distillation.teacher_models.{name}"
        if not teacher.model_path:
            yield f"set {key}.model_path to the teacher's folder or hub name"
        elif teacher.model_path.startswith(BUILTIN) and (fault := _builtin_fault(e, teacher.model_path)):
            yield f"{key}.model_path={teacher.model_path}: {fault}"
        if len(asked) > 1 and teacher.key is None:
            yield f"{key}.key: of several teachers each needs the value of data.reward_fn_key whose rows it teaches"
    for value, times in Counter(teacher.key for teacher in asked.values() if teacher.key).items():
        if times > 1:
            yield f"distillation.teacher_models: {times} teachers have the key {value!r}"


def _builtin_fault(e: RlxConfig, path: str) -> str | None:
    model, _, phase = path.partition("/")
    phases = [own.name for own in e.warmup.phases]
    if model != e.model.path:
        return f"a builtin teacher is the student after a phase of its warm-up, but model.path is {e.model.path}"
    if phase not in phases:
        return f"name a phase behind it: {', '.join(f'{model}/{own}' for own in phases) or 'warmup.phases has none'}"
    return None


def _distillation(said: Said, e: RlxConfig) -> Iterator[str]:
    how, mode, switch = e.distillation, "distillation.loss_mode", "distillation.use_policy_gradient"
    if how.use_policy_gradient and how.loss_mode == FORWARD_TOPK:
        yield f"{said(mode)} is not of the sampled token alone and has no advantage: set {switch}=false"
    if not how.use_policy_gradient and how.loss_mode in NO_PULL:
        yield f"{said(mode)}: its expected gradient is 0 when it is back-propagated; set {switch}=true or {mode}=k1+"


def _prime(said: Said, e: RlxConfig) -> Iterator[str]:
    prime, section = e.algorithm.prime, "algorithm.prime"
    if e.rollout.n < 2:
        yield f"{said('rollout.n')}: prime compares the answers of one prompt with each other and needs at least 2"
    if prime.accuracy_lower_bound > prime.accuracy_upper_bound:
        yield f"{said(f'{section}.accuracy_lower_bound')} is above {said(f'{section}.accuracy_upper_bound')}"
    if not prime.process_coef and not prime.outcome_coef:
        yield f"{said(f'{section}.process_coef')} and {said(f'{section}.outcome_coef')}: there is nothing to learn from"
