"""From a batch to optimizer steps, on a real rank: which roles step, how often, and on which prompts."""

import asyncio
from pathlib import Path

import pytest
import torch

from tests.controller.controller_tiny import answers, one_rank, tiny_config, tiny_model
from verl_core.config.effective import trained_roles
from verl_core.controller.flows import PolicyFlow, schedule_span
from verl_core.controller.roles import Role
from verl_core.tracking.timing import Timer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def run_updates(config, model: Path, batch, steps: list[int], total_steps=40) -> tuple[list[dict], dict[str, int]]:
    """Metrics of each step's update, and how many optimizer steps each role has taken in all."""
    with one_rank(config, model) as group:
        roles = {name: Role(name, group) for name in trained_roles(config)}
        flow = PolicyFlow(config, roles)

        async def work() -> list[dict]:
            seen = []
            for role in roles.values():
                await role.plan_schedule(*schedule_span(config, total_steps, role.name))
            for step in steps:
                await flow.prepare(batch, Timer())
                flow.advantage(batch)
                seen.append(await flow.update(batch, step, Timer()))
            return seen

        metrics = asyncio.run(work())
        return metrics, {role: engine.updates for role, engine in group.worker.engines.items()}


def test_warm_up_of_the_critic_leaves_the_actor_alone(model: Path):
    config = tiny_config("smoke-ppo", "trainer.critic_warmup=1")
    metrics, taken = run_updates(config, model, answers(4, 4), [1, 2])
    assert "actor/loss" not in metrics[0] and "critic/loss" in metrics[0] and "actor/loss" in metrics[1]
    assert taken == {"actor": 1, "critic": 2}


def test_without_a_critic_its_warm_up_holds_up_nobody(model: Path):
    config = tiny_config("smoke", "trainer.critic_warmup=5")
    metrics, taken = run_updates(config, model, answers(4, 4), [1])
    assert "actor/loss" in metrics[0] and taken == {"actor": 1}
    assert schedule_span(config, 40, "actor") == (40, 1)


def test_warm_up_of_the_learning_rate_takes_as_many_training_steps_as_its_key_says(model: Path):
    """veRL's meaning of the key, also where a training step takes several optimizer steps."""
    config = tiny_config(
        "smoke", "actor.ppo_mini_batch_size=2", "data.train_batch_size=4", "actor.ppo_epochs=2",
        "actor.optim.lr=1e-4", "actor.optim.lr_warmup_steps=2",
    )  # fmt: skip
    assert schedule_span(config, 3, "actor") == (12, 4)
    metrics, taken = run_updates(config, model, answers(4, 4), [1, 2, 3], total_steps=3)
    assert taken == {"actor": 12}
    rates = [sum(k / 8 for k in eighths) / 4 for eighths in ((1, 2, 3, 4), (5, 6, 7, 8), (8, 8, 8, 8))]
    assert [m["actor/lr"] for m in metrics] == pytest.approx([1e-4 * rate for rate in rates])


def test_prompts_that_do_not_fill_the_last_mini_batch_are_trained_on_too(model: Path):
    config = tiny_config("smoke", "actor.ppo_mini_batch_size=2", "data.train_batch_size=4", "actor.ppo_epochs=2")
    _, taken = run_updates(config, model, answers(5, 4), [1])
    assert taken == {"actor": 2 * 3}
    minis = list(PolicyFlow(config, {}).mini_batches(answers(5, 4), 2, step=1, epoch=0))
    assert [m.S for m in minis] == [8, 8, 4]
    assert torch.equal(torch.cat([m["ids_N"] for m in minis]), answers(5, 4)["ids_N"])


def test_a_batch_in_which_nothing_was_produced_changes_nothing(model: Path):
    """Cases A14, K20."""
    batch = answers(4, 4)
    batch.add(mask_N=torch.zeros(batch.N, dtype=torch.bool))
    metrics, taken = run_updates(tiny_config("smoke"), model, batch, [1])
    assert metrics == [{}] and taken == {"actor": 0}


def test_skipped_steps_are_counted_and_not_averaged(model: Path):
    batch = answers(4, 4)
    batch["reward_S"][:8] = float("nan")  # as a broken advantage would be: two of four mini-batches
    config = tiny_config("smoke", "actor.ppo_mini_batch_size=1", "data.train_batch_size=4")
    metrics, _ = run_updates(config, model, batch, [1])
    assert metrics[0]["actor/skipped_steps"] == 2
