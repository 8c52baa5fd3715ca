"""The rollout correction from a batch to optimizer steps on a real rank, with old log-probs from either side."""

import asyncio
import math
from pathlib import Path

import pytest
import torch

from tests.controller.controller_tiny import answers, one_rank, tiny_config, tiny_model
from verl_core.batch import Batch
from verl_core.controller.flows import PolicyFlow
from verl_core.controller.roles import Role
from verl_core.tracking.registry import check_known
from verl_core.tracking.timing import Timer

CORRECTION = "algorithm.rollout_correction"
MISMATCH = {
    *(f"training/rollout_{what}_diff_{how}" for what in ("logp", "probs") for how in ("mean", "max")),
    "training/rollout_actor_probs_pearson_corr",
    *(f"rollout_corr/{name}" for name in ("kl", "k3_kl", "training_ppl", "rollout_ppl", "ppl_ratio", "log_ppl_diff")),
    *(f"rollout_corr/{name}" for name in ("log_ppl_abs_diff", "chi2_token", "chi2_seq")),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def update(model: Path, *keys: str, batch: Batch | None = None, old_from_rollout: bool = False):
    """Metrics of one step on `batch` (by default 4 x 4 answers), that batch, and one weight after it."""
    batch = answers(4, 4) if batch is None else batch
    if "advantages_N" not in batch:
        noise = 0.5 * torch.randn(batch.N, generator=torch.Generator().manual_seed(1))
        batch.add(rollout_logp_N=(batch["rollout_logp_N"] + noise).where(batch["mask_N"], 0.0))
    config = tiny_config("smoke", "actor.ppo_micro_batch_size_per_gpu=3", *keys)
    with one_rank(config, model) as group:
        flow = PolicyFlow(config, {"actor": Role("actor", group)})
        flow.old_from_rollout = old_from_rollout

        async def work() -> dict[str, float]:
            await flow.prepare(batch, Timer())
            flow.advantage(batch)
            return await flow.update(batch, 1, Timer())

        metrics = asyncio.run(work())
        weights = {name: w.clone() for name, w in group.worker.engines["actor"].named_weights()}
    return metrics, batch, weights


def largest_change(one: dict, other: dict) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_the_mismatch_is_logged_and_the_same_whoever_gives_old_log_probs(model: Path):
    """Measured by the pass of the trainer, or in the update's first forward: both with the weights that sampled."""
    seen = [update(model, old_from_rollout=served)[0] for served in (False, True)]
    for metrics in seen:
        assert set(metrics) >= MISMATCH and not any(name.startswith("mismatch/") for name in metrics)
        check_known(metrics)
    for name in MISMATCH:
        assert seen[0][name] == pytest.approx(seen[1][name], rel=1e-5, abs=1e-7), name
    assert seen[0]["training/rollout_logp_diff_mean"] > 0.1


def test_weights_of_the_trainers_pass_change_the_step(model: Path):
    plain, _, before = update(model)
    keys = (f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=1.2")
    metrics, batch, after = update(model, *keys)
    factor_M = batch["correction_N"][batch["mask_N"]]
    ratio_M = (batch["old_logp_N"] - batch["rollout_logp_N"])[batch["mask_N"]].exp().clamp(max=1.2)
    torch.testing.assert_close(factor_M, ratio_M, rtol=1e-5, atol=0)
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(float(ratio_M.mean()), rel=1e-5)
    assert metrics["actor/pg_loss"] != pytest.approx(plain["actor/pg_loss"], rel=1e-3)
    assert largest_change(before, after) > 0
    check_known(metrics)


RULES = (f"{CORRECTION}.rollout_rs=token_k1,seq_mean_k3", f"{CORRECTION}.rollout_rs_threshold=1.6,0.2")


def test_rejection_is_the_same_before_the_update_and_in_it(model: Path):
    """At the first step both compare the engine with the same weights; only the clip's old log-probs differ, and a
    clip that is wide enough never binds."""
    wide = ("actor.clip_ratio_low=0.99", "actor.clip_ratio_high=1000", "actor.clip_ratio_c=1000")
    before, within = (update(model, *RULES, *wide, old_from_rollout=served)[0] for served in (False, True))
    shares = [name for name in before if "rollout_rs" in name]
    assert len(shares) == 6 and 0 < before["rollout_corr/rollout_rs_masked_fraction"] < 1
    for name in shares:
        assert before[name] == pytest.approx(within[name], abs=1e-9), name
    check_known(within)


@pytest.mark.parametrize("served", [False, True])
def test_all_rejected_leaves_the_weights_where_they_were(model: Path, served: bool):
    keys = (f"{CORRECTION}.rollout_rs=seq_sum_k3", f"{CORRECTION}.rollout_rs_threshold=1e-12")
    metrics, _, after = update(model, *keys, "actor.optim.weight_decay=0", old_from_rollout=served)
    _, _, start = update(model, "actor.optim.lr=1e-30", "actor.optim.weight_decay=0")
    assert metrics["actor/pg_loss"] == 0 and metrics["actor/grad_norm"] == 0 and metrics["actor/skipped_steps"] == 0
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == 1 and largest_change(after, start) < 1e-20


@pytest.mark.parametrize("served", [False, True])
def test_a_token_without_a_log_prob_trains_nothing(model: Path, served: bool):
    """Case O9: NaN from the engine under one token is as if the model had not produced it."""
    results = []
    for value in (math.nan, -math.inf, None):
        batch = answers(4, 4)
        place = int(batch["mask_N"].nonzero()[3, 0])
        if value is None:
            batch["mask_N"][place] = False
        else:
            batch["rollout_logp_N"][place] = value
        batch.add(advantages_N=torch.zeros(batch.N))  # taken as it is: no noise on its log-probs
        results.append(update(model, batch=batch, old_from_rollout=served))
    for metrics, batch, weights in results[:2]:
        assert all(math.isfinite(value) for value in metrics.values())
        assert metrics == results[2][0] and largest_change(weights, results[2][2]) == 0
        assert not batch["mask_N"][place]
