"""Rollout correction against a slow reimplementation, worked examples, and what must not change it."""

import math
import random

import pytest
import torch
from algorithms_examples import NAN, batch_of, joined, random_batch, split
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.algorithms.correction import correct, keep, log_ratio, mask_not_finite
from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.losses import PolicyLoss
from verl_core.algorithms.produced import produced
from verl_core.config.rollout_correction import (
    RULES,
    Rejection,
    RolloutCorrectionConfig,
    Weights,
    rejections_of,
    weights_of,
)

seeds = st.integers(0, 10_000)
PLAIN = PolicyLoss(agg_mode="token-mean", want_entropy=False)
weights_st = st.builds(
    Weights,
    level=st.sampled_from(["token", "sequence"]),
    low=st.sampled_from([None, 0.2, 0.8]),
    high=st.sampled_from([0.9, 1.5, 4.0]),
    normalize=st.booleans(),
)


def rejection(name: str, threshold: str | float) -> Rejection:
    return rejections_of(RolloutCorrectionConfig(rollout_rs=name, rollout_rs_threshold=threshold))[0]


def slow(batch, weights: Weights | None, rules: list[Rejection]) -> list[list[float]]:
    """The factor of every token of every sequence, one number at a time."""
    rows = []
    columns = (batch[name] for name in ("mask_N", "old_logp_N", "rollout_logp_N"))
    for mask, old, engine in zip(*(split(c, batch) for c in columns), strict=True):
        rows.append([o - e if m else None for m, o, e in zip(mask, old, engine, strict=True)])
    clamp = lambda x: max(-20.0, min(20.0, x))  # noqa: E731
    weighed, own = [], []
    for row in rows:
        gaps = [x for x in row if x is not None]
        whole = math.exp(clamp(sum(gaps)))
        out = []
        for gap in gaps:
            w = 1.0
            if weights is not None:
                w = whole if weights.level == "sequence" else math.exp(clamp(gap))
                inside = weights.low is None or weights.low <= w <= weights.high
                w = min(w, weights.high) if inside else 0.0
            out.append(w)
        weighed.append(out)
        if gaps:
            own.append(sum(out) / len(out))
    if weights is not None and weights.normalize:
        flat = own if weights.level == "sequence" else [w for out in weighed for w in out]
        mean = sum(flat) / len(flat) if flat else 0.0
        weighed = [[w / mean if mean else w for w in out] for out in weighed]
    factors = []
    for row, out in zip(rows, weighed, strict=True):
        gaps = [clamp(x) for x in row if x is not None]
        for rule in rules:
            k = {
                "k1": [-x for x in gaps],
                "k2": [x * x / 2 for x in gaps],
                "k3": [math.exp(x) - 1 - x for x in gaps],
            }[rule.name[-2:]]
            if k and rule.name.startswith("seq_"):
                value = {"sum": sum(k), "mean": sum(k) / len(k), "max": max(k)}[rule.name.split("_")[1]]
                k = [value] * len(k)
            out = [w if rule.low <= x <= rule.high else 0.0 for w, x in zip(out, k, strict=True)]
        it = iter(out)
        factors.append([0.0 if x is None else next(it) for x in row])
    return factors


@settings(max_examples=150)
@given(seeds, st.none() | weights_st, st.lists(st.sampled_from(RULES), max_size=3, unique=True), st.data())
def test_factors_are_the_token_loop(seed, weights, names, data):
    batch = random_batch(seed)
    threshold = lambda name: data.draw(st.sampled_from(["0.5_1.7", "3"] if name.endswith("k1") else [0.1, 0.6]))  # noqa: E731
    rules = [rejection(name, threshold(name)) for name in names]
    factor_N, metrics = correct(batch, weights, rules)
    for fast, expected in zip(split(factor_N, batch), slow(batch, weights, rules), strict=True):
        assert fast == pytest.approx(expected, rel=1e-6)
    assert factor_N.dtype == torch.float32 and all(map(math.isfinite, metrics.values()))


def two() -> tuple:
    """Three produced tokens; trainer over engine: 2, 1/2 in the first sequence, 4 in the second."""
    batch = batch_of(
        [[0, 1, 1], [1]],
        old_logp_N=[NAN, -1.0, -1.0, -1.0],
        rollout_logp_N=[NAN, -1 - math.log(2), -1 + math.log(2), -1 - math.log(4)],
        advantages_N=[NAN, 1.0, -2.0, 3.0],
    )
    return batch, Totals.of(batch)


@pytest.mark.parametrize(
    ("cfg", "expected"),
    [
        ({"rollout_is": "token"}, [2, 0.5, 2]),  # TIS at veRL's 2
        ({"rollout_is": "token", "rollout_is_threshold": "0.4_3.0"}, [2, 0.5, 0]),  # IcePop
        ({"rollout_is": "token", "rollout_is_threshold": "0.6_5"}, [2, 0, 4]),
        ({"rollout_is": "sequence", "rollout_is_threshold": 3}, [1, 1, 3]),
        ({"rollout_is": "token", "rollout_is_batch_normalize": True}, [4 / 3, 1 / 3, 4 / 3]),
        (
            {"rollout_is": "sequence", "rollout_is_threshold": 3, "rollout_is_batch_normalize": True},
            [0.5, 0.5, 1.5],  # mean over sequences, not tokens
        ),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": 3}, [1, 1, 0]),  # engine / trainer in [1/3, 3]
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.3_1.5"}, [1, 0, 0]),
        ({"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": 1.1}, [1, 1, 0]),
        ({"rollout_rs": "seq_max_k2", "rollout_rs_threshold": 0.3}, [1, 1, 0]),  # (ln 2)^2 / 2 = 0.24
        ({"rollout_rs": "seq_max_k3", "rollout_rs_threshold": 0.3}, [0, 0, 0]),  # 2 - 1 - ln 2 = 0.307
        ({"rollout_rs": "token_k1, seq_sum_k3", "rollout_rs_threshold": "3, 0.4"}, [0, 0, 0]),
        (
            {"rollout_is": "token", "rollout_is_threshold": 5, "rollout_rs": "token_k1", "rollout_rs_threshold": 3},
            [2, 0.5, 0],
        ),
    ],
)
def test_factors_by_hand(cfg, expected):
    batch, _ = two()
    asked = RolloutCorrectionConfig(**cfg)
    factor_N, _ = correct(batch, weights_of(asked), rejections_of(asked))
    assert factor_N.tolist() == pytest.approx([0, *expected])


def test_metrics_by_hand():
    batch, _ = two()
    _, seen = correct(batch, Weights("token", 0.6, 5.0, normalize=True), [rejection("token_k1", 3)])
    seen = {name.removeprefix("rollout_corr/rollout_"): value for name, value in seen.items()}
    assert seen == pytest.approx(
        {
            **{"is_mean": 2, "is_std": math.sqrt(8 / 3), "is_min": 0, "is_max": 4, "is_batch_norm_factor": 2},
            **{"is_ratio_fraction_high": 0, "is_ratio_fraction_low": 1 / 3, "is_oob_ratio": 1 / 3},
            **{"is_eff_sample_size": 4 / (20 / 3), "is_seq_mean": 2.5, "is_seq_min": 1, "is_seq_max": 4},
            **{"rs_masked_fraction": 1 / 3, "rs_seq_masked_fraction": 0.5},
            **{"rs_token_k1_masked_fraction": 1 / 3, "rs_token_k1_seq_masked_fraction": 0.5},
        }
    )


@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_a_rejected_token_leaves_the_sum_and_stays_in_the_divisor(mode):
    """The papers' indicator in front of the loss: what is left is not blown up by what was dropped."""
    batch, totals = two()
    batch.add(correction_N=torch.tensor([0.0, 2.0, 0.0, 1.0]))
    out = {Need.LOGP: torch.tensor([NAN, -1.0, -1.0, -1.0], requires_grad=True)}
    share, _ = PolicyLoss(agg_mode=mode, corrected=True, want_entropy=False)(out, batch, totals)
    divisor = {"token-mean": (3, 3), "token-sum": (1, 1), "seq-mean-token-sum": (2, 2), "seq-mean-token-mean": (4, 2)}
    first, second = divisor[mode]
    assert share.item() == pytest.approx(-2.0 / first - 3.0 / second)
    share.backward()
    assert out[Need.LOGP].grad.tolist() == pytest.approx([0, -2.0 / first, 0, -3.0 / second])


@pytest.mark.parametrize("seed", range(3))
def test_rejection_in_the_update_is_that_loss_with_the_factors_held_still(seed):
    """The indicator looks at the present weights and gives them no gradient."""
    batch = random_batch(seed)
    g = torch.Generator().manual_seed(seed)
    logp_N = (batch["rollout_logp_N"] + 0.5 * torch.randn(batch.N, generator=g, dtype=torch.float64)).requires_grad_()
    rules = (rejection("token_k1", 1.5), rejection("seq_mean_k3", 0.3))
    live = PolicyLoss(rejections=rules, want_entropy=False)
    share, metrics = live({Need.LOGP: logp_N}, batch, Totals.of(batch))
    at = produced(batch)
    kept_M, _ = keep(log_ratio(at.pick(logp_N), at.pick(batch["rollout_logp_N"])), at, rules)
    batch.add(correction_N=at.spread(kept_M.float(), batch.N))
    held = PolicyLoss(corrected=True, want_entropy=False)({Need.LOGP: logp_N}, batch, Totals.of(batch))[0]
    assert 0 < kept_M.sum() < at.M and share.item() == held.item()
    assert torch.equal(*(torch.autograd.grad(loss, logp_N)[0] for loss in (share, held)))
    assert joined([metrics])["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 - kept_M.double().mean())


def test_weights_of_one_leave_the_loss_as_it_was():
    batch = random_batch(5)
    logp_N = (batch["old_logp_N"] + 0.3).requires_grad_()
    results = []
    batch.add(correction_N=torch.ones(batch.N))
    for loss in (PLAIN, PolicyLoss(corrected=True, want_entropy=False)):
        share, metrics = loss({Need.LOGP: logp_N}, batch, Totals.of(batch))
        results.append((share.item(), torch.autograd.grad(share, logp_N)[0].tolist(), joined([metrics])))
    assert repr(results[0]) == repr(results[1])


@settings(max_examples=60)
@given(seeds, weights_st, st.randoms(use_true_random=False))
def test_neither_order_nor_what_lies_under_mask_0_changes_a_factor(seed, weights, rng: random.Random):
    rules = [rejection("token_k2", 0.5), rejection("seq_mean_k1", "0.5_1.5")]
    batch = random_batch(seed)
    factor_N, metrics = correct(batch, weights, rules)
    other, _ = correct(random_batch(seed, poison=math.inf), weights, rules)
    assert torch.equal(factor_N, other)
    order = torch.tensor(rng.sample(range(batch.S), batch.S))
    moved_N, moved = correct(batch.select(order), weights, rules)
    torch.testing.assert_close(moved_N, factor_N[batch.token_index(order)], rtol=1e-6, atol=0)
    assert moved == pytest.approx(metrics, rel=1e-9)


@pytest.mark.parametrize("agg_mode", ["token-mean", "seq-mean-token-mean"])
def test_all_rejected_is_0_with_gradient_0(agg_mode):
    batch, totals = two()
    batch["old_logp_N"][:] = torch.tensor([NAN, -math.inf, math.inf, -1.0])  # would be NaN, were it looked at
    logp_N = torch.tensor([NAN, -math.inf, math.inf, -1.0], requires_grad=True)
    batch.add(correction_N=torch.zeros(4))
    share, metrics = PolicyLoss(agg_mode=agg_mode, corrected=True, want_entropy=False)(
        {Need.LOGP: logp_N}, batch, totals
    )
    share.backward()
    assert share.item() == 0 and (logp_N.grad == 0).all() and all(map(math.isfinite, joined([metrics]).values()))


def test_ratios_beyond_every_exponent_stay_finite():
    batch = batch_of([[1, 1, 1]], old_logp_N=[-1.0, -900.0, -1.0], rollout_logp_N=[-800.0, -1.0, -1.0])
    factor_N, metrics = correct(batch, Weights("token", None, 1e12), [rejection("seq_sum_k3", 1e-9)])
    assert factor_N.tolist() == [0, 0, 0] and all(map(math.isfinite, metrics.values()))
    weight_N, _ = correct(batch, Weights("token", None, 1e12), [])
    assert weight_N.tolist() == pytest.approx([math.exp(20), math.exp(-20), 1])
    assert correct(batch, None, [rejection("token_k1", 1e9)])[0].tolist() == [1, 1, 1]  # e^20 is less


@pytest.mark.parametrize("value", [NAN, -math.inf])
def test_a_ratio_that_is_no_number_is_rejected_not_trained_on(value):
    batch = batch_of([[1, 1]], old_logp_N=[value, -1.0], rollout_logp_N=[-1.0, -1.0])
    assert correct(batch, None, [rejection("token_k1", 2)])[0].tolist() == [0, 1]


@pytest.mark.parametrize("masks", [[[0, 0], [0]], [], [[]]])
def test_nothing_produced(masks):
    batch = batch_of(masks)
    batch.add(old_logp_N=torch.full((batch.N,), NAN), rollout_logp_N=torch.full((batch.N,), NAN))
    factor_N, metrics = correct(batch, Weights("sequence", 0.5, 2.0, True), [rejection("seq_max_k3", 1)])
    assert factor_N.tolist() == [0] * batch.N and metrics == {}


def test_one_token_alone():
    batch = batch_of([[0, 1]], old_logp_N=[NAN, -1.0], rollout_logp_N=[NAN, -2.0])
    factor_N, metrics = correct(batch, Weights("sequence", None, 2.0, True), [rejection("seq_mean_k1", 3)])
    assert factor_N.tolist() == [0, 1] and metrics["rollout_corr/rollout_is_mean"] == 2
    assert metrics["rollout_corr/rollout_is_std"] == 0 and metrics["rollout_corr/rollout_is_eff_sample_size"] == 1


def test_a_log_prob_that_is_no_number_leaves_the_mask():
    """Case O9."""
    batch = batch_of([[0, 1, 1], [1, 1]], rollout_logp_N=[0.0, NAN, -1.0, -math.inf, -2.0])
    mask_not_finite(batch)
    assert batch["mask_N"].tolist() == [False, False, True, False, True]
