"""What a step's passes cost: FLOPs that balance ranks and give the utilisation of the hardware, and memory by phase."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verl_core.config.effective import kl_terms, learner
from verl_core.config.errors import UserError
from verl_core.config.loss_terms import FULL_KL
from verl_core.config.model_roles import SCORING, frozen, model_of
from verl_core.config.schema import RlxConfig
from verl_core.planning.flops import Flops
from verl_core.planning.gpus import peak_flops
from verl_core.planning.models import shape_of

if TYPE_CHECKING:
    from verl_core.controller.executors import WorkerGroup
    from verl_core.controller.roles import Role

log = logging.getLogger(__name__)

MFU = {  # phase -> name below perf/mfu/; veRL's where it has one
    "update_actor": "actor",
    "update_critic": "critic",
    "update_reward_model": "reward_model",
    "old_log_prob": "actor_infer",
    "ref": "ref",
    "values": "values",
    "teacher": "teacher",
    "reward_model": "reward_model_infer",
}

WHOLE_KL = {"actor.kl_loss_type": "update_actor", "algorithm.kl_penalty": "old_log_prob"}  # phases that compute it


@dataclass(frozen=True)
class Costs:
    """FLOPs of a role's model, by what is done with it."""

    forward: Flops
    update: Flops
    with_reference: frozenset[str] = frozenset()
    """Phases in which the reference goes through its layers as well."""

    def of(self, phase: str) -> Flops:
        own = self.update if phase.startswith("update_") else self.forward
        return own + self.forward if phase in self.with_reference else own


def costs_of(config: RlxConfig, role: str, folder: str) -> Costs | None:
    """Of an effective configuration's role; `folder` holds the model. None for an architecture that plans do not
    know."""
    override = {} if role in frozen(config) else config.model.override_config
    try:
        shape = shape_of(model_of(config, role, folder), override)
    except UserError as problem:
        log.info("%s: ranks are balanced by tokens, and perf/mfu is not known: %s", role, problem.message)
        return None
    forward = Flops.forward(shape, head=role not in ("critic", SCORING) and learner(config) == "actor")
    adapted = role == "actor" and config.model.lora_rank
    full = [WHOLE_KL[key] for key, kind in kl_terms(config).items() if role == "actor" and kind == FULL_KL]
    return Costs(
        forward,
        forward.update(shape.lora_params(config.model.lora_rank, config.model.target_modules) if adapted else None),
        frozenset(full),
    )


class Accounts:
    """Gathers both from all ranks, once a step."""

    def __init__(self, roles: Sequence[Role], groups: Mapping[str, WorkerGroup]):
        self.roles, self.groups = roles, groups
        self._peak: dict[int, float | None] = {}  # FLOP/s of a rank, by group

    async def start(self) -> None:
        """Asks the ranks what they run on, and begins the first step."""
        for group in self.groups.values():
            found = {peak_flops(name) for name in await group.call("hardware")}
            self._peak[id(group)] = found.pop() if len(found) == 1 else None
        await self.memory()
        for role in self.roles:
            role.asked.clear()

    async def memory(self) -> dict[str, float]:
        """perf/memory/* and perf/max_memory_*: of the rank that has most, since the last call."""
        most: dict[str, float] = {}
        for group in self.groups.values():
            for report in await group.call("memory"):
                for name, value in report.items():
                    most[f"perf/{name}"] = max(most.get(f"perf/{name}", 0.0), value)
        return most

    def utilisation(self, timing: Mapping[str, float]) -> dict[str, float | None]:
        """perf/mfu/*: FLOPs of the step's passes without recomputation, over the time of their phase on all ranks at
        peak; None where the peak is not known. Passes of validation, which are no phase of a step, have none. A new
        step begins."""
        found: dict[str, float | None] = {}
        for role in self.roles:
            peak = self._peak[id(role.group)]
            for phase, flops in role.asked.items():
                if f"timing_s/{phase}" not in timing:
                    continue
                rate = flops / timing[f"timing_s/{phase}"] / role.group.size
                name = f"perf/mfu/{MFU[phase]}"
                found[name] = rate / peak + (found.get(name) or 0.0) if peak else None  # of all teachers together
            role.asked.clear()
        return found
