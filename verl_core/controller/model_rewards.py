"""What stands behind rewards that a model gives: the ranks of a frozen reward model, a judge's endpoint or engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import torch

from verl_core.algorithms.bradley_terry import with_read_out
from verl_core.algorithms.loss import Need
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch
from verl_core.config.model_roles import SCORING, scores_by_model
from verl_core.config.schema import ModelConfig, RlxConfig
from verl_core.controller.judging import OwnEngine
from verl_core.controller.roles import Role
from verl_core.models.pretrained import load_hf_config, load_tokenizer, resolve
from verl_core.rewards.models.conversations import Conversations
from verl_core.rewards.models.endpoint import Endpoint
from verl_core.rewards.models.head import require_head
from verl_core.rewards.models.judge import Judge
from verl_core.rewards.models.reward_model import RewardModel
from verl_core.rollout.gathering import Gathering
from verl_core.tracking.timing import Timer

CACHE = "judge_cache.sqlite"
"""File of a run's judgements in its folder."""


def check_models(config: RlxConfig) -> None:
    """Raises UserError where reward.reward_model.path holds no reward model; reads no weights."""
    if scores_by_model(config):
        require_head(resolve(str(config.reward.reward_model.path)))


def model_parts(
    config: RlxConfig, roles: Mapping[str, Role], timer: Timer, run_dir: Path | None
) -> dict[str, RewardModel | Judge]:
    """The parts of an effective configuration's reward that models give, by their names in reward.scorers.

    Args:
        run_dir: where judgements are kept that have no file of their own; None: nowhere.

    Raises:
        UserError: what `reward.reward_model` or `reward.judge` names is not there or cannot be used.
    """
    parts: dict[str, RewardModel | Judge] = {}
    if scores_by_model(config):
        parts["reward_model"] = _reward_model(config, roles[SCORING], timer)
    if "judge" in config.reward.scorers:
        cfg = config.reward.judge
        default = run_dir / CACHE if run_dir is not None else None
        cache = Path(cfg.cache).expanduser() if cfg.cache else default
        own = cfg.engine is not None
        parts["judge"] = Judge(cfg, lambda: OwnEngine(cfg) if own else Endpoint(cfg), cache, config.trainer.seed)
    return parts


class Outputs:
    """A frozen reward model's outputs, from the ranks that have it. What is asked at the same time travels together."""

    def __init__(self, role: Role, timer: Timer):
        self._role, self._timer = role, timer
        self._gathering = Gathering(self._forward)

    async def of(self, conversations: list[list[int]]) -> list[float]:
        """The output at the last token of each."""
        return list(await asyncio.gather(*map(self._gathering.ask, conversations)))

    async def _forward(self, conversations: list[list[int]]) -> list[float]:
        length_S = torch.tensor([len(ids) for ids in conversations])
        ids_N = torch.tensor([token for ids in conversations for token in ids])
        batch = with_read_out(Batch(length_S, torch.arange(len(conversations)), {"ids_N": ids_N}))
        with self._timer.phase("reward_model"):
            values_N = (await self._role.forward(batch, frozenset({Need.VALUES})))[Need.VALUES]
        return produced(batch).pick(values_N).tolist()


def _reward_model(config: RlxConfig, role: Role, timer: Timer) -> RewardModel:
    cfg = config.reward.reward_model
    model = ModelConfig(path=str(cfg.path), trust_remote_code=config.model.trust_remote_code)
    positions = getattr(load_hf_config(model).get_text_config(), "max_position_embeddings", None)
    budget = cfg.max_token_len_per_gpu - 1 if cfg.max_token_len_per_gpu is not None else None  # one token reads it off
    limits = [limit for limit in (cfg.max_length, budget, positions) if limit is not None]
    conversations = Conversations(load_tokenizer(model), cfg, min(limits, default=None))
    return RewardModel(conversations, Outputs(role, timer).of)
