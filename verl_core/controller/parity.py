"""The parity gate: before anything is trained, the rollout engine's log-probs of what it sampled are compared with the
trainer's on the same ids. An engine that disagrees makes every ratio wrong, silently, so the run refuses to start."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from verl_core.algorithms.loss import Need
from verl_core.batch import collate
from verl_core.config.effective import settled
from verl_core.config.errors import MachineError
from verl_core.config.schema import RlxConfig
from verl_core.controller.roles import Role
from verl_core.controller.seeds import draw_seed
from verl_core.data.dataset import PromptDataset
from verl_core.rollout.agent_loop import Generate, SingleTurn, Task
from verl_core.rollout.protocol import Sampling

log = logging.getLogger(__name__)

PROMPTS, TOKENS = 8, 64
BOTH_FLOAT32 = ("float32", "float32")
FLOAT32_BOUND, BF16_BOUND = 1e-4, 0.15  # nats; bf16 rounds differently in every kernel order
SHARE_OF_CLIP = (
    0.25  # of the clip range: what the engine's log-probs may move a ratio on average, with nothing else set
)


@dataclass(frozen=True)
class Parity:
    mean: float  # mean |engine - trainer|, nats a token
    largest: float
    bound: float
    missing: int = 0  # tokens whose log-prob is not a number on one side; the others are measured without them

    @property
    def holds(self) -> bool:
        return self.mean <= self.bound and not self.missing


async def measure(
    config: RlxConfig, dataset: PromptDataset, generate: Generate, actor: Role, dtypes: tuple[str, str]
) -> Parity:
    """Samples a few answers at the training temperature, without top-p and top-k (a cut distribution is not the
    trainer's), and compares log-probs. `dtypes`: what trainer and engine compute in. Raises MachineError when the
    engine produces no token at all."""
    sampling = Sampling(max_tokens=min(TOKENS, config.data.max_response_length), temperature=config.rollout.temperature)
    loop = SingleTurn()
    groups = []
    for row in dataset.take(range(min(PROMPTS, len(dataset)))):
        task = Task(row.uid, 0, row.ids, sampling, draw_seed(config.trainer.seed, "parity", row.uid), {})
        groups.append(await loop.run(task, generate))
    batch = collate(groups)
    if not batch["mask_N"].any():
        raise MachineError(
            f"the rollout engine produced no token on {len(groups)} prompts: its log-probs are not numbers",
            "check the weights in model.path for NaN; in bfloat16, try rollout.dtype=float32",
        )
    trainer_N = (await actor.forward(batch, frozenset({Need.LOGP}), config.rollout.temperature))[Need.LOGP]
    gap_M = (trainer_N - batch["rollout_logp_N"])[batch["mask_N"]].abs()
    known_M = gap_M[gap_M.isfinite()]
    bound = config.trainer.parity_threshold or (FLOAT32_BOUND if dtypes == BOTH_FLOAT32 else BF16_BOUND)
    mean, largest = (float(known_M.mean()), float(known_M.max())) if len(known_M) else (0.0, 0.0)
    return Parity(mean, largest, bound, missing=len(gap_M) - len(known_M))


def engine_serves(
    config: RlxConfig, dtypes: tuple[str, str], measured: Parity | None, before: bool | None = None
) -> bool:
    """Whether old log-probs are taken from the engine instead of a trainer pass: as rollout.old_log_prob says.

    auto: where the engine samples the trainer's own distribution and the gate measured little: at most SHARE_OF_CLIP
    of the clip range, or all that the gate accepts where rollout_rs rejects the rest. Importance weights need the
    trainer's pass. `measured` None (the gate is off): only the float32 hf engine. `before`: what the run decided before
    it was resumed; it stays, so that a figure near the bound does not change the run.
    """
    r, correction = config.rollout, config.algorithm.rollout_correction
    if r.old_log_prob != "auto":
        return r.old_log_prob == "rollout"
    if r.top_p != 1.0 or r.top_k != -1 or correction.rollout_is is not None:
        return False
    if before is not None:
        return before
    if measured is None:
        return r.engine == "hf" and dtypes == BOTH_FLOAT32
    clip = min(settled(config.actor.clip_ratio_low), settled(config.actor.clip_ratio_high))
    return measured.holds and (correction.rollout_rs is not None or measured.mean <= SHARE_OF_CLIP * clip)


def enforce(parity: Parity, config: RlxConfig) -> None:
    """Raises MachineError when the gate does not hold and trainer.parity is error; else says what was measured."""
    text = f"rollout engine and trainer differ by {parity.mean:.2e} nats a token (mean; largest {parity.largest:.2e})"
    if parity.missing:
        text += f", and {parity.missing} tokens have a log-prob that is not a number"
    if parity.holds:
        log.info("parity: %s, bound %.2g", text, parity.bound)
        return
    if config.trainer.parity == "error":
        raise MachineError(
            f"{text}; {parity.bound:.2g} is the most that is accepted",
            "check that both load the same weights and dtype; trainer.parity=warn lets it pass",
        )
    log.warning("parity: %s; %.2g is the most that is accepted", text, parity.bound)
