"""The KL from the reference over the whole vocabulary, in the loss and in the reward, on a real rank."""

import asyncio
from pathlib import Path

import pytest
import torch

from tests.controller.controller_tiny import answers, one_rank, tiny_config, tiny_model
from verl_core.algorithms.loss import Need
from verl_core.controller.accounting import costs_of
from verl_core.controller.flows import PolicyFlow
from verl_core.controller.roles import Role
from verl_core.tracking.timing import Timer

LOSS = ["actor.use_kl_loss=true", "actor.kl_loss_type=full", "actor.kl_loss_coef=0.5"]
REWARD = ["algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=full", "algorithm.kl_ctrl.kl_coef=0.3"]
KEYS = ["algorithm.name=reinforce_plus_plus", "actor.optim.lr=1e-2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def on_a_rank(config, model: Path, work):
    with one_rank(config, model) as group:
        return asyncio.run(work(PolicyFlow(config, {"actor": Role("actor", group)})))


async def step(flow: PolicyFlow, number: int):
    batch = await flow.prepare(answers(3, 4), Timer())
    return batch, flow.advantage(batch) | await flow.update(batch, number, Timer())


def test_in_the_loss_it_is_what_the_engine_says_of_the_weights_of_the_step(model: Path):
    async def work(flow: PolicyFlow):
        first, metrics = await step(flow, 1)
        want = (await flow.actor.forward(first, frozenset({Need.FULL_KL})))[Need.FULL_KL]
        return metrics, float(want.sum() / first["mask_N"].sum()), await step(flow, 2)

    before, want, (batch, after) = on_a_rank(tiny_config("smoke", *KEYS, *LOSS), model, work)
    assert before["actor/kl_loss"] == 0 and "ref_logp_N" not in batch  # the first step starts at the reference
    assert after["actor/kl_loss"] == pytest.approx(want, rel=1e-4) and want > 1e-3


@pytest.mark.parametrize("from_engine", [False, True])
def test_in_the_reward_each_token_pays_its_own(model: Path, from_engine):
    async def work(flow: PolicyFlow):
        flow.old_from_rollout = from_engine
        await step(flow, 1)
        now = (await flow.actor.forward(answers(3, 4), frozenset({Need.FULL_KL})))[Need.FULL_KL]
        return now, await step(flow, 2)

    kl_N, (batch, metrics) = on_a_rank(tiny_config("smoke", *KEYS, *REWARD), model, work)
    mask_N = batch["mask_N"]
    scores_N = torch.zeros(batch.N).index_copy(0, batch.cu_seqlens_S1[1:] - 1, batch["reward_S"].float())
    torch.testing.assert_close(batch["token_reward_N"].float(), scores_N - 0.3 * kl_N * mask_N)
    mean = (batch.sum_S(kl_N) / batch.sum_S(mask_N)).mean()
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(float(mean), rel=1e-4) and mean > 1e-3
    assert torch.equal(batch["old_logp_N"], batch["rollout_logp_N"]) == from_engine


@pytest.mark.parametrize(("keys", "phase"), [(LOSS, "update_actor"), (REWARD, "old_log_prob")])
def test_the_references_pass_counts_in_the_phase_that_makes_it(model: Path, keys, phase):
    plain, full = (costs_of(tiny_config("smoke", *KEYS, *own), "actor", str(model)) for own in ([], keys))
    for name in ("update_actor", "old_log_prob"):
        more = full.of(name).sequence(9, 5) - plain.of(name).sequence(9, 5)
        assert more == (plain.of("ref").sequence(9, 5) if name == phase else 0)


def test_beside_an_estimate_the_reference_log_probs_are_there(model: Path):
    keys = [*KEYS, *LOSS, "algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=k1"]
    batch, _ = on_a_rank(tiny_config("smoke", *keys), model, lambda flow: step(flow, 1))
    torch.testing.assert_close(batch["ref_logp_N"], batch["old_logp_N"])
