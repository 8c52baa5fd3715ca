"""Prompts whose answers are all empty: the step runs, they add nothing, and nothing is NaN."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from tests.controller.controller_tiny import answers, one_rank, tiny_config, tiny_model
from verl_core.algorithms.metrics import batch_metrics
from verl_core.batch import Batch
from verl_core.config.effective import trained_roles
from verl_core.controller.flows import PolicyFlow
from verl_core.controller.roles import Role
from verl_core.tracking.timing import Timer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def silenced(groups: range) -> Batch:
    """Four prompts with four answers each; those of some groups produced nothing."""
    batch = answers(4, 4)
    for group in groups:
        batch["mask_N"][batch.group_S[batch.seq_N] == group] = False
    return batch


def metrics_of(config, model: Path, batch: Batch) -> tuple[dict[str, float], dict[str, int]]:
    with one_rank(config, model) as group:
        roles = {name: Role(name, group) for name in trained_roles(config)}
        flow = PolicyFlow(config, roles)

        async def step() -> dict[str, float]:
            await flow.prepare(batch, Timer())
            found = flow.advantage(batch)
            return found | await flow.update(batch, 1, Timer()) | batch_metrics(batch)

        return asyncio.run(step()), {role: engine.updates for role, engine in group.worker.engines.items()}


KL = ("algorithm.use_kl_in_reward=true", "actor.use_kl_loss=true")


@pytest.mark.parametrize("profile", ["smoke", "smoke-ppo"])
@pytest.mark.parametrize("rule", ["actor.ppo_micro_batch_size_per_gpu=2", "actor.ppo_max_token_len_per_gpu=100"])
def test_a_group_without_answers_beside_others(model: Path, profile: str, rule: str):
    unset = "ppo_max_token_len_per_gpu" if "size" in rule else "ppo_micro_batch_size_per_gpu"
    keys = ("actor.ppo_mini_batch_size=4", "data.train_batch_size=4", rule, f"actor.{unset}=null", *KL)
    config = tiny_config(profile, *keys)
    metrics, taken = metrics_of(config, model, silenced(range(1, 2)))
    assert taken["actor"] == 1
    assert metrics["actor/grad_norm"] > 0 and metrics["actor/skipped_steps"] == 0
    assert all(math.isfinite(value) for value in metrics.values()), metrics
    assert metrics["response/aborted_ratio"] == 0.25


@pytest.mark.parametrize("profile", ["smoke", "smoke-ppo"])
def test_a_batch_without_any_answer_takes_no_step_and_logs_no_loss(model: Path, profile: str):
    config = tiny_config(profile, "actor.ppo_mini_batch_size=2", "data.train_batch_size=4", *KL)
    metrics, taken = metrics_of(config, model, silenced(range(4)))
    assert set(taken.values()) == {0}
    assert not {"actor/loss", "actor/grad_norm", "critic/loss"} & metrics.keys()
    assert all(math.isfinite(value) for value in metrics.values()), metrics
    assert metrics["response/aborted_ratio"] == 1
