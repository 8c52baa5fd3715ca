"""What every flow shares: roles, optimizer steps on mini-batches of an epoch, reference log-probs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from verl_core.algorithms.loss import Loss, Need, Totals
from verl_core.batch import Batch
from verl_core.config.effective import settled, uses_rollout
from verl_core.config.model_roles import role_settings
from verl_core.config.schema import RlxConfig
from verl_core.controller.roles import Role
from verl_core.controller.seeds import draw_seed
from verl_core.tracking.timing import Timer
from verl_core.training.protocol import MicroBatching

COUNTED = "/skipped_steps"  # adds up over the optimizer steps of a batch; every other metric is averaged
LOGP = frozenset({Need.LOGP})


class Flow:
    """From a batch to new weights, in the three calls that `trainer.train` makes: `prepare`, `advantage`, `update`.

    Args:
        config: an effective one.
        roles: by name: "actor", and what else has an engine of its own ("ref", "critic", ...).
    """

    old_from_rollout: bool | None = None
    """Whether old log-probs are the engine's own; set by whoever has held the parity gate, or from a checkpoint."""

    def __init__(self, config: RlxConfig, roles: Mapping[str, Role]):
        self.config, self.roles = config, roles

    def check(self, folder: str, tokenizer: PreTrainedTokenizerBase, sources: Collection[str]) -> None:
        """Raises UserError where the flow cannot work with the model in `folder`, its tokenizer, or training rows of
        these data sources; called before the first step."""

    async def prepare(self, batch: Batch, timer: Timer) -> Batch:
        """Adds what the roles say of a batch before any weight changes: log-probs, values."""
        return batch

    def advantage(self, batch: Batch) -> dict[str, float]:
        """Adds what the losses learn from; returns metrics. No role is called."""
        return {}

    async def update(self, batch: Batch, step: int, timer: Timer) -> dict[str, float]:
        """All optimizer steps of one batch. Returns their metrics, means over the optimizer steps (counts: sums);
        none where nothing was produced."""
        raise NotImplementedError

    async def measure(self, batch: Batch, timer: Timer) -> dict[str, float]:
        """What the held-out examples of one source say of the present weights, which stay as they are: `loss`, and
        `acc` where there is right and wrong. Logged as val/<name>/<source>; only of flows that read a data set."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """JSON: what the flow remembers from one step to the next."""
        return {"old_from_rollout": self.old_from_rollout}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.old_from_rollout = state.get("old_from_rollout")

    # --- for the flows ----------------------------------------------------------------------------------------------

    @property
    def actor(self) -> Role:
        return self.roles["actor"]

    @property
    def temperature(self) -> float:
        """At which answers are sampled, and so looked at; 1 for those that are read."""
        return self.config.rollout.temperature if uses_rollout(self.config) else 1.0

    async def reference_logp(self, batch: Batch, timer: Timer) -> Tensor:
        """Log-probs [N] under the reference: a role of its own, or the actor's snapshot."""
        c = self.config
        micro = MicroBatching(c.ref.log_prob_micro_batch_size_per_gpu, c.ref.log_prob_max_token_len_per_gpu)
        role, snapshot = (self.roles["ref"], None) if "ref" in self.roles else (self.actor, "ref")
        with timer.phase("ref"):
            out = await role.forward(batch, LOGP, self.temperature, micro, snapshot)
        return out[Need.LOGP]

    async def present(self, batch: Batch, timer: Timer, want: frozenset[Need] = LOGP) -> dict[Need, Tensor]:
        """What the actor's present weights say of a batch."""
        r = self.config.rollout
        micro = MicroBatching(r.log_prob_micro_batch_size_per_gpu, r.log_prob_max_token_len_per_gpu)
        with timer.phase("old_log_prob"):
            return await self.actor.forward(batch, want, self.temperature, micro)

    def loss_for(self, loss: Loss, mini: Batch, step: int, epoch: int, first: bool) -> Loss:
        """The loss of one mini-batch, to which columns may be added; `first`: no optimizer step of this batch came
        before it."""
        return loss

    async def epochs(self, role: Role, loss: Loss, batch: Batch, step: int, timer: Timer) -> dict[str, float]:
        """The role's optimizer steps on a batch: every mini-batch of every epoch."""
        settings = role_settings(self.config, role.name)
        seen: dict[str, list[float]] = defaultdict(list)
        first = True
        with timer.phase(f"update_{role.name}"):
            for epoch in range(settled(settings.ppo_epochs)):
                for mini in self.mini_batches(batch, settled(settings.ppo_mini_batch_size), step, epoch):
                    totals = Totals.of(mini)
                    if totals.tokens == 0:
                        continue  # nothing was produced: an update would be 0/0
                    this = self.loss_for(loss, mini, step, epoch, first)
                    for name, value in (await role.step(mini, this, totals)).items():
                        seen[name].append(value)
                    first = False
        return {name: sum(v) if name.endswith(COUNTED) else sum(v) / len(v) for name, v in seen.items()}

    def mini_batches(self, batch: Batch, mini_prompts: int, step: int, epoch: int) -> Iterator[Batch]:
        """Whole groups of `mini_prompts` prompts, in the batch's order or, with actor.shuffle, a drawn one."""
        order = torch.arange(batch.P)
        if self.config.actor.shuffle:
            generator = torch.Generator().manual_seed(draw_seed(self.config.trainer.seed, "mini", step, epoch))
            order = torch.randperm(batch.P, generator=generator)
        for prompts in order.split(mini_prompts):
            yield batch.select(torch.isin(batch.group_S, prompts).nonzero()[:, 0])


def of_the_sampler(batch: Batch, present_logp_N: Tensor) -> Tensor:
    """Log-probs of the present weights, and where an older policy sampled (stale_N) that one's, as the engine had
    them."""
    if "stale_N" not in batch:
        return present_logp_N
    return torch.where(batch["stale_N"], batch["rollout_logp_N"], present_logp_N)


def schedule_span(config: RlxConfig, total_steps: int, role: str) -> tuple[int, int]:
    """What a role's learning-rate schedule spans: its optimizer steps in the run, and those of a training step."""
    settings = role_settings(config, role)
    mini_batches = -(-config.data.train_batch_size // settled(settings.ppo_mini_batch_size))
    per_step = mini_batches * settled(settings.ppo_epochs)
    return per_step * (total_steps - (critic_only_steps(config) if role == "actor" else 0)), per_step


def critic_only_steps(config: RlxConfig) -> int:
    """The first steps, in which the actor waits for the critic; 0 where there is none to wait for."""
    return config.trainer.critic_warmup if config.critic.enable else 0
