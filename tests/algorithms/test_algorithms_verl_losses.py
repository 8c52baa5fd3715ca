"""Losses of fixed inputs and veRL 0.9.1's numbers for them (verl_0_9_1_losses.json, made by make_verl_losses.py from
its released wheel), and where rlx does otherwise on purpose: docs/algorithms/policy_losses.md says why."""

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import reference_losses as paper
import torch
from algorithms_examples import batch_of, joined, produced_rows

from verl_core.algorithms.kl import AdaptiveKl
from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.losses import PolicyLoss, ValueLoss
from verl_core.config import catalogue
from verl_core.config.compose import resolve
from verl_core.config.effective import effective

HERE = Path(__file__).parent
INPUTS = json.loads((HERE / "verl_0_9_1.json").read_text())
VERL = json.loads((HERE / "verl_0_9_1_losses.json").read_text())
LOSSES = {key.removeprefix("loss "): value for key, value in VERL.items() if key.startswith("loss ")}
HERE_CALLED = {"bypass_mode": "reinforce"}  # with loss_type=reinforce and rollout_is=token
OTHER_METRICS = {"clip_cov": {"actor/pg_clipfrac"}, "kl_cov": {"actor/ppo_kl"}}
DIFFERENCES = VERL["differences"]


def flat(rows):
    return torch.tensor([x for row in rows for x in row], dtype=torch.float32)


def batch():
    made = batch_of(INPUTS["masks"]["tools"], INPUTS["groups"])
    made.add(old_logp_N=flat(INPUTS["logp"]), advantages_N=flat(VERL["advantages"]))
    made.add(values_N=flat(INPUTS["values"]), returns_N=flat(VERL["returns"]), correction_N=flat(VERL["weights"]))
    return made


@cache
def loss_of(name: str, mode: str) -> PolicyLoss:
    found = LOSSES[name]
    keys = {f"actor.{key}": value for key, value in found["actor"].items()}
    keys |= {f"actor.policy_loss.{key}": value for key, value in found["policy_loss"].items()}
    keys |= {"actor.policy_loss.loss_mode": HERE_CALLED.get(name, name)}
    keys |= {"actor.loss_agg_mode": mode, "actor.loss_scale_factor": VERL["scale"]}
    actor = effective(resolve("smoke", [f"{key}={value}" for key, value in keys.items()]).config).actor
    return PolicyLoss.from_config(actor, temperature=1.0, want_entropy=False)


def run(loss: PolicyLoss, logp_rows=VERL["near"], parts=(range(6),), made=None):
    """Value, gradient and metrics, from these parts of the batch."""
    made = batch() if made is None else made
    loss.mark(made, seed=0)
    logp_N, totals = flat(logp_rows).requires_grad_(), Totals.of(made)
    shares, seen = [], []
    for part in parts:
        index_S = torch.tensor(list(part))
        share, metrics = loss({Need.LOGP: logp_N[made.token_index(index_S)]}, made.select(index_S), totals)
        shares.append(share)
        seen.append(metrics)
    total = torch.stack(shares).sum()
    return total.item(), torch.autograd.grad(total, logp_N)[0], joined(seen)


def test_every_loss_is_compared():
    compared = {HERE_CALLED.get(name, name) for name in LOSSES}
    other_names = {"gmpo"}  # geo_mean
    assert compared | other_names == set(catalogue.names("policy_loss", built=True))


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name in LOSSES for mode in LOSSES[name]["values"]])
def test_value(name, mode):
    assert run(loss_of(name, mode))[0] == pytest.approx(LOSSES[name]["values"][mode], rel=2e-6, abs=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_metrics_and_weights_of_the_rollout_correction(name):
    found = LOSSES[name]
    loss = loss_of(name, next(iter(found["values"])))
    _, gradient, metrics = run(loss)
    torch.testing.assert_close(gradient, flat(found["gradient"]), rtol=1e-5, atol=1e-7)
    for key in found["metrics"].keys() & metrics.keys() - OTHER_METRICS.get(name, set()):
        assert metrics[key] == pytest.approx(found["metrics"][key], rel=1e-5), key
    if "weighted" in found:
        assert run(replace(loss, corrected=True))[0] == pytest.approx(found["weighted"], rel=2e-6)


@pytest.mark.parametrize("mode", VERL["value_loss"])
def test_value_loss(mode):
    made = batch()
    out = {Need.VALUES: flat(VERL["vpreds"])}
    value, _ = ValueLoss(0.2, mode, VERL["scale"])(out, made, Totals.of(made))
    assert value.item() == pytest.approx(VERL["value_loss"][mode], rel=1e-6)


def test_adaptive_kl_coefficient():
    control = AdaptiveKl(0.1, target=0.05, horizon=1000)
    for kl, sequences, coef in VERL["controller"]:
        control.update(kl, sequences)
        assert control.coef == pytest.approx(coef, rel=1e-12)


@pytest.mark.parametrize("name", ["sapo", "geo_mean"])
def test_differs_the_configured_aggregation_is_obeyed(name):
    verl = DIFFERENCES["token-mean"][name]
    assert verl == LOSSES[name]["values"]["seq-mean-token-mean"]
    assert abs(run(loss_of(name, "token-mean"))[0] - verl) > 1e-3


def test_differs_gmpo_is_the_same_for_every_split():
    """veRL means over each micro-batch: of four rows and two, the two weigh as much as the four."""
    verl, whole = DIFFERENCES["halves"], LOSSES["geo_mean"]["values"]["seq-mean-token-mean"]
    assert abs(verl - whole) > 1e-2
    split = run(loss_of("geo_mean", "seq-mean-token-mean"), parts=(range(4), range(4, 6)))[0]
    assert split == pytest.approx(whole, rel=2e-6)


def test_differs_gmpo_weighs_each_token_by_its_own_correction():
    """veRL weighs an answer by the geometric mean of its tokens' weights, which a single rejected token makes 1e-10 to
    a power of its length."""
    loss = replace(loss_of("geo_mean", "seq-mean-token-mean"), corrected=True)
    assert abs(run(loss)[0] - DIFFERENCES["weighted"]) > 1e-4


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_differs_covariances_are_of_the_log_probs_that_sampled(name):
    """veRL's are of the present ones, which differ where the two are far apart."""
    made, loss = batch(), loss_of(name, "token-mean")
    value = run(loss, INPUTS["ref_logp"], made=made)[0]
    made.add(logp_N=flat(INPUTS["ref_logp"]))
    rows = produced_rows(made, ["logp", "old_logp", "advantages", "selected"])
    parts = [(r["logp"], r["logp"], r["old_logp"], r["advantages"], r["selected"], loss.options) for r in rows]
    assert value == pytest.approx(paper.aggregate([paper.LOSSES[name](*p) for p in parts], "token-mean", 1), rel=1e-5)
    assert abs(value - DIFFERENCES["far"][name]) > 1e-3


@pytest.mark.parametrize(
    ("name", "nats", "verls", "ours"), [("gspo", 15, 10, 15), ("clip_cov", 25, 25, 20), ("kl_cov", 25, 25, 20)]
)
def test_differs_every_exponent_is_held_within_20(name, nats, verls, ours):
    made = batch_of(INPUTS["masks"]["tools"])
    made.add(old_logp_N=torch.full((made.N,), -float(nats)), advantages_N=-torch.ones(made.N))
    penalty = 0.4 * 3 / 15  # of kl_cov, on three of fifteen tokens
    value = run(loss_of(name, "token-mean"), torch.zeros(6, 5).tolist(), made=made)[0]
    assert DIFFERENCES[f"exponent of {nats}"][name] == pytest.approx(math.exp(verls) + penalty * nats, rel=1e-4)
    assert value == pytest.approx(math.exp(ours) + penalty * ours, rel=1e-4)


def test_differs_dros_beta_has_a_default():
    """veRL refuses the loss until dro_beta is set."""
    actor = effective(resolve("smoke", ["algorithm.name=dro"]).config).actor
    assert PolicyLoss.from_config(actor, 1.0).options.dro_beta == 1.0
