"""From a configuration to its plan."""

from dataclasses import replace

from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.model_roles import BUILTIN, REWARD_MODEL_PATH, SCORING, scores_by_model, teachers
from verl_core.config.schema import RlxConfig
from verl_core.planning import gpus
from verl_core.planning.advice import advise
from verl_core.planning.divisions import divisions, lengths, meshes, targets
from verl_core.planning.estimate import estimate
from verl_core.planning.gpus import Gpu
from verl_core.planning.models import shape_of
from verl_core.planning.result import Plan
from verl_core.planning.shapes import ModelShape

__all__ = ["Plan", "gpu_for", "plan", "planned", "refuse_sizes", "shapes_of"]

_CHOOSE = "choose sizes that divide; `rlx plan` with the new ones shows the mesh"
_TARGETS = "model.target_modules=all-linear takes all of them, a list of names some"


def plan(config: RlxConfig, gpu: Gpu) -> Plan:
    """What a checked configuration needs on GPUs of this kind, and what would make it fit.

    Raises UserError for a model whose shape is not known, and with every size that does not divide at once.
    """
    first = planned(config, gpu)
    return replace(first, advice=advise(config, shapes_of(effective(config)), gpu, first))


def planned(config: RlxConfig, gpu: Gpu) -> Plan:
    """The same without looking for advice. Raises as `plan` does."""
    e = effective(config)
    shapes = shapes_of(e)
    if faults := divisions(e, shapes):
        raise UserError("\n  ".join(faults), _TARGETS if faults == list(targets(e, shapes["actor"])) else _CHOOSE)
    return estimate(e, shapes, gpu)


def refuse_sizes(config: RlxConfig) -> None:
    """Raises UserError where ranks do not divide the sizes of a trained model or of the one that generates, where
    sequences may be longer than it takes, and where an adapter's target is none of its matrices, as far as its shape
    can be known without loading it."""
    e = effective(config)
    try:
        shapes = shapes_of(e)
    except UserError:  # a name to be looked up, or an architecture that plans do not know: the engine checks it
        return
    if faults := meshes(e, shapes):
        raise UserError("\n  ".join(faults), _CHOOSE)
    if faults := list(targets(e, shapes["actor"])):
        raise UserError("\n  ".join(faults), _TARGETS)
    for fault in lengths(e, shapes["actor"]):
        raise UserError(fault, "lower data.max_prompt_length, data.max_response_length or rollout.max_model_len")


def shapes_of(e: RlxConfig) -> dict[str, ModelShape]:
    """The shapes of an effective configuration's models by role; the reference has the actor's."""
    shapes = {"actor": shape_of(e.model.path, e.model.override_config)}
    if e.critic.enable:
        path = e.critic.model.path or e.model.path
        same = path == e.model.path
        shapes["critic"] = shapes["actor"] if same else shape_of(path, e.model.override_config, "critic.model.path")
    for role, teacher in teachers(e).items():
        path, key = str(teacher.model_path), f"distillation.teacher_models.{role.removeprefix('teacher_')}.model_path"
        shapes[role] = shapes["actor"] if path.startswith(BUILTIN) else shape_of(path, {}, key)
    if scores_by_model(e):
        shapes[SCORING] = shape_of(str(e.reward.reward_model.path), {}, REWARD_MODEL_PATH)
    return shapes


def gpu_for(config: RlxConfig, name: str | None) -> tuple[Gpu, str]:
    """The card to plan for and why it is that one: the named one, the CPU for trainer.device=cpu, this machine's, else
    an H200. Raises UserError for a name that is not known."""
    if name:
        return gpus.named(name), "named by --gpu"
    if config.trainer.device == "cpu":
        return gpus.cpu(), "trainer.device=cpu"
    if found := gpus.this_machine():
        return found, "this machine's"
    return gpus.GPUS[gpus.DEFAULT], "this machine has no NVIDIA GPU; --gpu names another"
