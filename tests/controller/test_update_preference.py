"""Preference flows on a real rank: which answers they compare, to what, and when the reference is renewed."""

import asyncio
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tests.controller.controller_tiny import answers, one_rank, tiny_config, tiny_model
from verl_core.algorithms.preference.mismatched import mismatched
from verl_core.batch import Batch, collate
from verl_core.config.catalogue import implementation
from verl_core.controller.flows.preference import PreferenceFlow
from verl_core.controller.roles import Role
from verl_core.tracking.timing import Timer

LN2 = pytest.approx(0.6931472, rel=1e-5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def steps(config, model: Path, batch: Batch, count: int, old_from_rollout: bool = False):
    """Metrics of `count` updates on the batch, what `measure` says before and after, and the flow."""
    with one_rank(config, model) as group:
        flow = implementation("algorithm", config.algorithm.name)(config, {"actor": Role("actor", group)})
        flow.old_from_rollout = old_from_rollout

        async def work():
            measured = [await flow.measure(batch, Timer())] if type(flow) is PreferenceFlow else []
            seen = []
            for step in range(1, count + 1):
                await flow.prepare(batch, Timer())
                seen.append(await flow.update(batch, step, Timer()))
            if measured:
                measured.append(await flow.measure(batch, Timer()))
            return seen, measured

        return *asyncio.run(work()), flow


def pairs(prompts: int = 4) -> Batch:
    return answers(prompts, 2)


@pytest.mark.parametrize(
    "name", ["dpo", *(pytest.param(n, marks=pytest.mark.slow) for n in ("ipo", "kto", "orpo", "simpo"))]
)
def test_learns_from_pairs(model: Path, name: str):
    config = tiny_config("smoke-dpo", f"algorithm.name={name}", "actor.optim.lr=1e-3", "actor.optim.lr_warmup_steps=0")
    seen, (before, after), _ = steps(config, model, pairs(), 3)
    assert after["loss"] < before["loss"] and after["margin"] > before["margin"]
    assert seen[0]["actor/loss"] == pytest.approx(before["loss"], rel=1e-4)  # the first step is on what was measured
    if name == "dpo":
        assert before["loss"] == LN2 and before["acc"] == 0  # the policy is its own reference: nothing leads


def test_kto_takes_its_baseline_from_other_prompts(model: Path):
    """The loss has the mean log-ratio of answers to other prompts where it is positive, and else 0."""
    config = tiny_config("smoke-dpo", "algorithm.name=kto", "actor.optim.lr=1e-3", "actor.optim.lr_warmup_steps=0")
    batch = pairs()
    with one_rank(config, model) as group:
        flow = PreferenceFlow(config, {"actor": Role("actor", group)})

        async def work():
            for step in (1, 2):
                await flow.update(batch, step, Timer())
            loss = await flow._loss(flow.judged(batch), Timer())
            others = mismatched(batch)
            now, ref = (await flow.present(others, Timer()))["logp_N"], await flow.reference(others, Timer())
            return loss.options.kl_baseline, float(others.sum_S((now - ref).double() * others["mask_N"]).mean())

        baseline, mean = asyncio.run(work())
    assert mean != 0 and baseline == pytest.approx(max(0.0, mean), abs=1e-9)


def test_online_dpo_compares_best_and_worst_and_leaves_ties_out(model: Path):
    batch = answers(4, 4)
    batch["reward_S"][:4] = 1.0
    batch["reward_S"][4:8] = torch.tensor([0.2, 0.9, 0.1, 0.9])
    config = tiny_config("smoke-online-dpo")
    (first,), _, flow = steps(config, model, batch, 1)
    judged = flow.judged(batch)
    assert judged.S == 6 and judged["sample_S"].tolist() == [1, 2, 1, 0, 1, 0]
    assert first["actor/loss"] == LN2 and first["actor/rewards/ties"] == 0.25

    batch["reward_S"][:] = 1.0
    (nothing,), _, flow = steps(config, model, batch, 1)
    assert nothing == {"actor/rewards/ties": 1.0}


def test_sppo_looks_back_at_the_policy_that_sampled(model: Path):
    """The engine's log-probs where the parity gate trusts them, else a pass of the trainer's before the update."""
    config, batch = tiny_config("smoke-sppo", "algorithm.preference.sppo_eta=2", "actor.ppo_epochs=1"), answers(4, 4)
    (first,), _, _ = steps(config, model, batch, 1)
    assert batch["win_S"].tolist() == [0.25, 0.75] * 8
    assert first["actor/loss"] == pytest.approx(0.25, rel=1e-5)  # (0 - 2 (P - 1/2))^2
    batch.add(stale_N=batch["mask_N"] & (batch.group_S < 2)[batch.seq_N])  # half of the answers waited for a step
    (partly,), _, _ = steps(config, model, batch, 1)
    assert partly["actor/loss"] != pytest.approx(0.25, rel=0.01)
    (trusting,), _, _ = steps(config, model, batch, 1, old_from_rollout=True)
    assert trusting["actor/loss"] != pytest.approx(0.25, rel=0.01)  # these answers came from no engine


def spin_batch() -> Batch:
    own = answers(4, 1)["trajectory_blob"]
    for t, demonstration in zip(own, answers(4, 1, seed=1)["trajectory_blob"], strict=True):
        t.meta["demonstration"] = asdict(demonstration)
    return collate([[t] for t in own])


def test_spin_renews_its_reference(model: Path):
    config = tiny_config("smoke-spin", "algorithm.preference.ref_update_freq=2", "actor.optim.lr_warmup_steps=0")
    seen, _, flow = steps(config, model, spin_batch(), 4)
    judged = flow.judged(spin_batch())
    assert judged["win_S"].tolist() == [1, 0] * 4 and judged.P == 4
    assert [line["actor/loss"] == LN2 for line in seen] == [True, False, True, False]


def test_a_renewed_reference_survives_a_checkpoint(model: Path, tmp_path: Path):
    config = tiny_config("smoke-spin", "algorithm.preference.ref_update_freq=2", "actor.optim.lr_warmup_steps=0")
    batch = spin_batch()

    def run(resumed: bool) -> list[float]:
        """Losses of steps 4 and 5, behind a checkpoint after the third, or from it."""
        with one_rank(config, model) as group:
            role = Role("actor", group)
            flow = implementation("algorithm", "spin")(config, {"actor": role})

            async def losses(*steps: int) -> list[float]:
                return [(await flow.update(batch, step, Timer()))["actor/loss"] for step in steps]

            async def work() -> list[float]:
                if resumed:
                    await role.load(str(tmp_path))
                else:
                    await losses(1, 2, 3)
                    size = await role.state_bytes()
                    await role.save(str(tmp_path))
                    files = [f for part in ("weights", "optimizer") for f in tmp_path.glob(f"*/{part}/*.safetensors")]
                    assert 0 <= sum(f.stat().st_size for f in files) - size < 0.05 * size
                return await losses(4, 5)

            return asyncio.run(work())

    unbroken = run(resumed=False)
    assert run(resumed=True) == unbroken
    assert (tmp_path / "ref" / "weights").is_dir()

    kept = tiny_config("smoke-spin", "algorithm.preference.ref_update_freq=0")
    with one_rank(kept, model) as group:  # renewed no more, it still is not the model that the run began with
        role = Role("actor", group)
        asyncio.run(role.load(str(tmp_path)))
        asyncio.run(role.save(str(tmp_path / "later")))
    assert (tmp_path / "later" / "ref" / "weights").is_dir()
