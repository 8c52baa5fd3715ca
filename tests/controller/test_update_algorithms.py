"""What single algorithms ask of the update and of the source of answers, on a real rank."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.controller.controller_tiny import answers, one_rank, tiny_config, tiny_model
from verl_core.algorithms.loss import Need
from verl_core.config.catalogue import implementation, names
from verl_core.config.compose import resolve
from verl_core.config.effective import effective, trained_roles
from verl_core.controller.buffer import ReplayBuffer
from verl_core.controller.flows import PolicyFlow
from verl_core.controller.roles import Role
from verl_core.controller.sources import RolloutSource
from verl_core.data.dataset import PromptRow
from verl_core.rollout.protocol import Sampling
from verl_core.tracking.timing import Timer

POLICY_GRADIENTS = [name for name in names("algorithm", built=True) if implementation("algorithm", name) is PolicyFlow]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def on_a_rank(config, model: Path, work):
    """What the coroutine `work(flow)` returns, with a real actor."""
    with one_rank(config, model) as group:
        roles = {name: Role(name, group) for name in trained_roles(config)}
        return asyncio.run(work(PolicyFlow(config, roles)))


@pytest.mark.parametrize("name", POLICY_GRADIENTS)
def test_every_policy_gradient_takes_a_step_from_a_batch_of_answers(model: Path, name):
    config = tiny_config("smoke", f"algorithm.name={name}", *["algorithm.gdpo_reward_keys=[score]"] * (name == "gdpo"))
    batch = answers(4, 4)
    batch["reward_S"][1::4] += 1  # one best answer a prompt: pass@k learns from nothing else
    for t in batch["trajectory_blob"]:
        t.meta["greedy_reward"] = 0.25

    async def work(flow):
        await flow.prepare(batch, Timer())
        return flow.advantage(batch) | await flow.update(batch, 1, Timer())

    metrics = on_a_rank(config, model, work)
    assert batch["advantages_N"].any() and metrics["actor/grad_norm"] > 0
    assert ("critic/vf_loss" in metrics) == config.critic.enable


@pytest.mark.parametrize("from_engine", [False, True])
def test_the_optimal_token_baseline_gets_the_sums_of_squared_probabilities(model: Path, from_engine):
    config = tiny_config("smoke", "algorithm.name=optimal_token_baseline")

    async def work(flow):
        flow.old_from_rollout = from_engine
        batch = await flow.prepare(answers(3, 4), Timer())
        flow.advantage(batch)
        again = await flow.actor.forward(batch, frozenset({Need.LOGP, Need.SUM_P_SQ}), 1.0)
        return batch, again[Need.SUM_P_SQ]

    batch, square_N = on_a_rank(config, model, work)
    torch.testing.assert_close(batch["sum_p_sq_N"], square_N)
    assert (square_N[batch["mask_N"]] > 0).all()
    assert torch.equal(batch["old_logp_N"], batch["rollout_logp_N"]) == from_engine
    assert batch["advantages_N"].any()


@pytest.mark.parametrize("empty", [False, True])
def test_what_is_no_log_prob_does_not_reach_the_coefficient_of_the_kl(model: Path, empty):
    """Cases A2, A14: the engine's NaN stays in the column when its token leaves the mask, and a step may have nothing
    but such tokens; 0 x NaN would be the coefficient for the rest of the run."""
    words = ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.target_kl=0.1"]

    async def work(flow):
        flow.old_from_rollout = True
        batch = answers(3, 4)
        batch["rollout_logp_N"][batch["mask_N"] if empty else batch["mask_N"].nonzero()[0]] = torch.nan
        before = flow.kl_control.coef
        metrics = flow.advantage(await flow.prepare(batch, Timer()))
        return before, flow.kl_control.coef, metrics["actor/reward_kl_penalty"], batch["advantages_N"]

    before, after, kl, advantages_N = on_a_rank(tiny_config("smoke", *words), model, work)
    assert math.isfinite(kl) and math.isfinite(after)
    assert (kl == 0) == (before == after) == empty
    assert advantages_N.isfinite().all()


def test_an_algorithm_without_need_of_them_does_not_pay_for_them(model: Path):
    async def work(flow):
        return await flow.prepare(answers(3, 4), Timer())

    assert "sum_p_sq_N" not in on_a_rank(tiny_config("smoke"), model, work)


def test_the_entropy_coefficient_follows_the_entropy(model: Path):
    """A fresh model's entropy is far above 0.1 and far below 100 nats."""
    for target, expect in ((100.0, [0.0, 0.005, 0.01]), (0.1, [0.0, 0.0, 0.0])):
        words = ["actor.entropy_ctrl.type=target", f"actor.entropy_ctrl.target={target}"]

        async def work(flow):
            seen = []
            for step in (1, 2, 3):
                batch = await flow.prepare(answers(3, 4), Timer())
                flow.advantage(batch)
                seen.append((await flow.update(batch, step, Timer()))["actor/entropy_coeff"])
            return seen

        assert on_a_rank(tiny_config("smoke", *words), model, work) == pytest.approx(expect)


def test_pf_ppo_trains_on_rows_drawn_anew_by_seed_and_step(model: Path):
    config = tiny_config("smoke", "algorithm.name=pf_ppo", "algorithm.pf_ppo.reweight_method=max_min")
    batch = answers(4, 4)
    batch.add(row_S=torch.arange(batch.S))
    flow = PolicyFlow(config, {})
    drawn = [flow._drawn_anew(batch, step)["row_S"].tolist() for step in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]

    async def work(flow):
        made = await flow.prepare(answers(4, 4), Timer())
        flow.advantage(made)
        before = made["advantages_N"].clone()
        metrics = await flow.update(made, 1, Timer())
        return metrics, torch.equal(before, made["advantages_N"])

    metrics, kept = on_a_rank(config, model, work)
    assert "actor/pg_loss" in metrics and "critic/vf_loss" in metrics and kept


class Maker:
    """Answers whose reward says how they were sampled: 1 where greedily, else the sample's number."""

    def __init__(self):
        self.asked: list[tuple[int, str, int, Sampling]] = []

    async def make(self, row, n, sampling, purpose, step, first=0):
        self.asked.append((n, purpose, first, sampling))
        made = answers(1, n)["trajectory_blob"]
        return [replace(t, reward=1.0 if sampling.temperature == 0 else float(k)) for k, t in enumerate(made)]


@pytest.mark.parametrize("overlong", [False, True])
def test_remax_generates_one_greedy_answer_a_prompt_beside_the_others(overlong):
    words = ["algorithm.name=remax", "rollout.n=2"]
    words += [f"reward.overlong_buffer.{x}" for x in ("enable=true", "len=24", "penalty_factor=0.5")] * overlong
    config, maker, buffer = effective(resolve("smoke", words).config), Maker(), ReplayBuffer()

    async def scenario():
        source = RolloutSource(config, None, maker, buffer)
        row = PromptRow("a", 0, [{"role": "user", "content": "a"}], (1, 2), "source", "gold", {}, "file")
        source.start(buffer.open(row, 1))
        return (await asyncio.wait_for(buffer.take(1), 5))[0]

    group = asyncio.run(scenario())
    (n, purpose, first, sampling), (one, greedily, number, greedy) = maker.asked
    assert (n, purpose, first, sampling.temperature) == (2, "rollout", 0, 1.0)
    assert (one, greedily, number) == (1, "greedy", 2)  # a request id of its own
    assert (greedy.temperature, greedy.top_p, greedy.top_k) == (0.0, 1.0, -1)
    assert len(group) == 2
    for t in group:  # the greedy answer is penalised as the others are
        assert (t.meta["greedy_reward"] < 1.0) == overlong
