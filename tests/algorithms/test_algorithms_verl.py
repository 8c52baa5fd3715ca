"""Fixed inputs and veRL 0.9.1's outputs (verl_0_9_1.json, made by make_verl_fixture.py from its released wheel)."""

import json
from pathlib import Path

import pytest
import torch
from algorithms_examples import batch_of, config

from verl_core.algorithms.advantages import compute_advantage, token_rewards
from verl_core.algorithms.aggregate import aggregate
from verl_core.algorithms.kl import kl_estimate
from verl_core.algorithms.loss import Totals
from verl_core.algorithms.produced import produced
from verl_core.batch import Trajectory

VERL = json.loads((Path(__file__).parent / "verl_0_9_1.json").read_text())


def flat(rows):
    return torch.tensor([x for row in rows for x in row], dtype=torch.float32)


def batch(kind):
    made = batch_of(VERL["masks"][kind], VERL["groups"], reward_S=VERL["rewards"])
    made.add(values_N=flat(VERL["values"]), old_logp_N=flat(VERL["logp"]), sum_p_sq_N=flat(VERL["squares"]))
    rows = zip(VERL["rewards"], VERL["other_rewards"], VERL["greedy"], strict=True)
    blob = [
        Trajectory([], [], [], [], [], "", 0, reward=r, reward_parts={"format": other}, meta={"greedy_reward": greedy})
        for r, other, greedy in rows
    ]
    made.add(trajectory_blob=blob)
    return made.add(token_reward_N=token_rewards(made))


CASES = [(kind, name) for kind in ("plain", "tools") for name in VERL["advantages"][kind]]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_advantages(kind, name):
    estimator, _, no_std = name.partition(", ")
    cfg = config(gamma=VERL["gamma"], lam=VERL["lam"], norm_adv_by_std_in_grpo=not no_std)
    out = compute_advantage(estimator, batch(kind), cfg)["advantages_N"]
    torch.testing.assert_close(out, flat(VERL["advantages"][kind][name]), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", VERL["kl"])
def test_kl_and_its_gradient(name):
    logp, ref_logp = flat(VERL["logp"]).requires_grad_(), flat(VERL["ref_logp"])
    value = kl_estimate(name, logp, ref_logp)
    torch.testing.assert_close(value, flat(VERL["kl"][name]["value"]), rtol=1e-5, atol=1e-6)
    gradient = torch.autograd.grad(value.sum(), logp)[0]
    torch.testing.assert_close(gradient, flat(VERL["kl"][name]["gradient"]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", VERL["aggregation"])
def test_aggregation(mode):
    made = batch("tools")
    at = produced(made)
    loss = aggregate(at.pick(made["values_N"]), at, Totals.of(made), mode, scale=5.0)
    assert loss.item() == pytest.approx(VERL["aggregation"][mode], rel=1e-6)
