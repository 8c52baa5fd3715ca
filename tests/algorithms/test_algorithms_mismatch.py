"""How far the engine is from the trainer: each number against its definition, and the same however it is cut."""

import math

import numpy as np
import pytest
import torch
from algorithms_examples import NAN, batch_of, joined, random_batch, split
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.algorithms.mismatch import finished, mismatch
from verl_core.algorithms.produced import produced
from verl_core.tracking.registry import check_known

PEARSON = "training/rollout_actor_probs_pearson_corr"


def measured(batch, parts=None) -> dict[str, float]:
    """Of the whole batch, or joined from parts of its sequences."""
    cut = [batch] if parts is None else [batch.select(torch.tensor(p, dtype=torch.int64)) for p in parts]
    seen = []
    for part in cut:
        at = produced(part)
        seen.append(mismatch(at.pick(part["old_logp_N"]), at.pick(part["rollout_logp_N"]), at))
    return finished(joined(seen))


@pytest.mark.parametrize("seed", range(5))
def test_each_number_is_its_definition(seed):
    batch = random_batch(seed)
    mask = batch["mask_N"].numpy()
    t, e = batch["old_logp_N"].numpy()[mask], batch["rollout_logp_N"].numpy()[mask]
    rows = []
    for row_mask, *sides in zip(
        *(split(batch[c], batch) for c in ("mask_N", "old_logp_N", "rollout_logp_N")), strict=True
    ):
        if any(row_mask):
            rows.append(np.array([[x for x, m in zip(side, row_mask, strict=True) if m] for side in sides]))
    ppl = np.exp([-row.mean(axis=1) for row in rows])
    gaps = np.log(ppl[:, 0] / ppl[:, 1])
    expected = {
        "training/rollout_logp_diff_mean": np.abs(t - e).mean(),
        "training/rollout_logp_diff_max": np.abs(t - e).max(),
        "training/rollout_probs_diff_mean": np.abs(np.exp(t) - np.exp(e)).mean(),
        "training/rollout_probs_diff_max": np.abs(np.exp(t) - np.exp(e)).max(),
        PEARSON: np.corrcoef(np.exp(t), np.exp(e))[0, 1],
        "rollout_corr/kl": (e - t).mean(),
        "rollout_corr/k3_kl": (np.exp(t - e) - 1 - (t - e)).mean(),
        "rollout_corr/training_ppl": ppl[:, 0].mean(),
        "rollout_corr/rollout_ppl": ppl[:, 1].mean(),
        "rollout_corr/ppl_ratio": (ppl[:, 0] / ppl[:, 1]).mean(),
        "rollout_corr/log_ppl_diff": gaps.mean(),
        "rollout_corr/log_ppl_abs_diff": np.abs(gaps).mean(),
        "rollout_corr/chi2_token": (np.exp(2 * (t - e)) - 1).mean(),
        "rollout_corr/chi2_seq": np.mean([np.exp(2 * (row[0] - row[1]).sum()) - 1 for row in rows]),
    }
    assert measured(batch) == pytest.approx(expected, rel=1e-6)
    check_known(expected)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.permutations(range(9)), st.integers(0, 9), st.integers(0, 9))
def test_ranks_and_micro_batches_give_the_same_numbers(seed, order, a, b):
    batch = random_batch(seed)
    parts = [order[: min(a, b)], order[min(a, b) : max(a, b)], order[max(a, b) :]]
    assert measured(batch, parts) == pytest.approx(measured(batch), rel=1e-6, abs=1e-12)


def test_an_engine_in_float32_correlates_to_nine_digits():
    """A sum of squares less a square of sums loses digits where both sides agree; in float64 enough remain."""
    g = torch.Generator().manual_seed(0)
    logp_N = -torch.randn(4000, generator=g).abs()
    batch = batch_of([[1] * 4000], old_logp_N=logp_N, rollout_logp_N=logp_N + 1e-5 * torch.randn(4000, generator=g))
    seen = measured(batch)
    assert 1 - 1e-8 < seen[PEARSON] <= 1 and 0 < seen["rollout_corr/k3_kl"] < 1e-9


def test_sides_that_do_not_vary_have_no_correlation():
    batch = batch_of([[1, 1]], old_logp_N=[-1.0, -1.0], rollout_logp_N=[-1.0, -2.0])
    assert PEARSON not in measured(batch) and measured(batch)["rollout_corr/kl"] == pytest.approx(-0.5)


def test_impossible_tokens_stay_finite_but_for_the_difference():
    batch = batch_of([[1, 1]], old_logp_N=[-math.inf, -1.0], rollout_logp_N=[-1.0, -1.5])
    seen = measured(batch)
    assert {name for name, value in seen.items() if not math.isfinite(value)} == {
        *("training/rollout_logp_diff_mean", "training/rollout_logp_diff_max"),
        *("rollout_corr/log_ppl_diff", "rollout_corr/log_ppl_abs_diff"),
    }


@pytest.mark.parametrize("masks", [[[0, 0], [0]], [], [[]]])
def test_nothing_produced_has_nothing_to_compare(masks):
    batch = batch_of(masks)
    batch.add(old_logp_N=torch.full((batch.N,), NAN), rollout_logp_N=torch.full((batch.N,), NAN))
    assert all(value == 0 for value in measured(batch).values())
