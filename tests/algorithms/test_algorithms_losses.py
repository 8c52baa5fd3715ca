"""The losses as engines get them, with terms and options together. Each policy loss, KL and aggregation by name:
test_algorithms_every_loss."""

import math
import pickle

import pytest
import torch
from algorithms_examples import NAN, batch_of, joined, random_batch, split
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.losses import PolicyLoss, SftLoss, ValueLoss
from verl_core.algorithms.policy_loss import Options
from verl_core.batch import Segment, Trajectory, collate
from verl_core.config.errors import UserError
from verl_core.config.rollout_correction import Rejection
from verl_core.config.schema import ActorConfig, CriticConfig, PolicyLossConfig

PPO = PolicyLoss(agg_mode="token-mean")
FULL = PolicyLoss(
    options=Options(0.2, 0.28, 3.0), agg_mode="seq-mean-token-mean", entropy_coeff=0.1, kl_type="k3", kl_coef=0.5
)
DR = PolicyLoss(agg_mode="seq-mean-token-sum-norm", scale=7.0, kl_type="k2", kl_coef=0.5, log_mismatch=True)
LOSSES = [
    PPO,
    FULL,
    DR,
    PolicyLoss(agg_mode="token-sum", want_entropy=False),
    PolicyLoss(agg_mode="seq-mean-token-sum", entropy_coeff=-0.2),
    PolicyLoss(agg_mode="seq-mean-token-mean", corrected=True, kl_type="k2", kl_coef=0.5),
    PolicyLoss(agg_mode="seq-mean-token-mean", kl_type="full", kl_coef=0.5),
    PolicyLoss(rejections=(Rejection("token_k1", -0.7, 0.7), Rejection("seq_mean_k3", -math.inf, 0.4))),
    PolicyLoss("gmpo", agg_mode="seq-mean-token-mean", corrected=True),
    ValueLoss(),
    ValueLoss(0.2, "seq-mean-token-mean"),
    SftLoss(),
]
seeds = st.integers(0, 10_000)


def outputs(batch, seed=1):
    """What an engine would hand over, with gradients wanted; near the old values, so that both sides of clips occur."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda: 0.5 * torch.randn(batch.N, generator=g, dtype=torch.float64)  # noqa: E731
    start = {
        Need.LOGP: batch["old_logp_N"] + draw(),
        Need.ENTROPY: draw().abs(),
        Need.VALUES: batch["values_N"] + draw(),
        Need.FULL_KL: draw().abs(),
    }
    return {need: value.detach().requires_grad_() for need, value in start.items()}


def run(loss, batch, out, totals):
    share, metrics = loss({need: out[need] for need in loss.needs}, batch, totals)
    return share, metrics


def gradients(loss, value, out):
    return torch.cat(torch.autograd.grad(value, [out[n] for n in sorted(loss.needs)], materialize_grads=True))


def slow_policy_loss(loss, batch, out):
    """FULL's loss, one token at a time."""
    total, sequences = 0.0, 0
    columns = (batch["mask_N"], out[Need.LOGP], batch["old_logp_N"], batch["advantages_N"], batch["ref_logp_N"])
    for rows in zip(*(split(c.detach(), batch) for c in (*columns, out[Need.ENTROPY])), strict=True):
        tokens = []
        for mask, logp, old, adv, ref, entropy in zip(*rows, strict=True):
            if mask:
                ratio = math.exp(logp - old)
                pg = max(-adv * ratio, -adv * min(max(ratio, 0.8), 1.28))
                if adv < 0:
                    pg = min(pg, -3 * adv)
                k3 = min(math.exp(ref - logp) - 1 - (ref - logp), 10)
                tokens.append(pg + loss.kl_coef * k3 - loss.entropy_coeff * entropy)
        if tokens:
            total += sum(tokens) / len(tokens)
            sequences += 1
    return total / max(sequences, 1)


@pytest.mark.parametrize("seed", range(6))
def test_policy_loss_is_the_token_loop(seed):
    batch = random_batch(seed)
    out = outputs(batch)
    share, _ = run(FULL, batch, out, Totals.of(batch))
    assert share.item() == pytest.approx(slow_policy_loss(FULL, batch, out), rel=1e-9)


def test_policy_metrics_by_hand():
    batch = batch_of(
        [[0, 1, 1], [0, 1]],
        old_logp_N=[NAN, -1.0, -1.0, NAN, -1.0],
        advantages_N=[NAN, 1.0, -1.0, NAN, -1.0],
        ref_logp_N=[NAN, -1.0, -2.0, NAN, -1.0],
        rollout_logp_N=[NAN, -1.0, -1.0, NAN, -1.5],
    )
    out = {
        Need.LOGP: torch.tensor([NAN, -1.0 + math.log(1.5), -1.0 + math.log(5.0), NAN, -1.0]),
        Need.ENTROPY: torch.tensor([NAN, 0.5, 1.0, NAN, 3.0]),
    }
    loss = PolicyLoss(kl_type="k1", kl_coef=0.1, log_mismatch=True)
    share, metrics = loss(out, batch, Totals.of(batch))
    seen = joined([metrics])
    assert seen["actor/pg_loss"] == pytest.approx((-1.2 + 3.0 + 1.0) / 3)
    assert seen["actor/pg_clipfrac"] == pytest.approx(1 / 3)
    assert seen["actor/pg_clipfrac_lower"] == pytest.approx(1 / 3)
    assert seen["actor/ppo_kl"] == pytest.approx(-(math.log(1.5) + math.log(5)) / 3)
    assert seen["actor/entropy"] == pytest.approx(1.5)
    assert seen["actor/kl_loss"] == pytest.approx((math.log(1.5) + 1 + math.log(5)) / 3)
    assert share.item() == pytest.approx(seen["actor/pg_loss"] + 0.1 * seen["actor/kl_loss"])
    assert seen["training/rollout_logp_diff_mean"] == pytest.approx((math.log(1.5) + math.log(5) + 0.5) / 3)
    assert seen["training/rollout_logp_diff_max"] == pytest.approx(math.log(5))
    assert seen["training/rollout_probs_diff_max"] == pytest.approx(4 * math.exp(-1))
    assert seen["training/rollout_probs_diff_mean"] == pytest.approx(
        (0.5 * math.exp(-1) + 4 * math.exp(-1) + math.exp(-1) - math.exp(-1.5)) / 3
    )


def test_value_loss_and_metrics_by_hand():
    """Old value 1. Right: 0.5 off. Up by 2, held at 1.5: of the errors to 1.2 the larger, unclipped. Down by 2 towards
    a return of -1: the clipped error is larger and wins."""
    batch = batch_of([[0, 1, 1, 1]], values_N=[NAN, 1.0, 1.0, 1.0], returns_N=[NAN, 1.5, 1.2, -1.0])
    out = {Need.VALUES: torch.tensor([NAN, 1.0, 3.0, -1.0], requires_grad=True)}
    share, metrics = ValueLoss(0.5)(out, batch, Totals.of(batch))
    assert share.item() == pytest.approx(0.5 * (0.5**2 + 1.8**2 + 1.5**2) / 3)
    seen = joined([metrics])
    assert seen["critic/vf_loss"] == pytest.approx(share.item())
    assert seen["critic/vf_clipfrac"] == pytest.approx(1 / 3)
    assert seen["critic/vpred_mean"] == pytest.approx(1.0)
    share.backward()
    # the clipped token gives no gradient, padding none either
    assert out[Need.VALUES].grad.tolist() == pytest.approx([0, -0.5 / 3, 1.8 / 3, 0])


def test_sft_loss_is_cross_entropy_with_ignored_labels():
    g = torch.Generator().manual_seed(0)
    batch = batch_of([[0, 0, 1, 1], [0, 1, 1, 1, 0]])
    logits = torch.randn(batch.N, 11, generator=g, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(11, (batch.N,), generator=g)
    expect = torch.nn.functional.cross_entropy(logits, ids.where(batch["mask_N"], -100), ignore_index=-100)
    logp_N = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
    share, metrics = SftLoss()({Need.LOGP: logp_N}, batch, Totals.of(batch))
    assert share.item() == pytest.approx(expect.item())
    assert metrics == {}  # the engine logs the loss itself, by its role
    torch.testing.assert_close(torch.autograd.grad(share, logits)[0], torch.autograd.grad(expect, logits)[0])


def test_the_final_token_is_trained_though_it_is_the_pad_id():
    pad = eos = 0
    answer = Trajectory(
        ids=[pad, 5, 7, eos],
        mask=[0, 0, 1, 1],
        logps=[0, 0, -1, -1],
        versions=[-1, -1, 0, 0],
        segments=[Segment("prompt", 0, 2), Segment("response", 2, 4)],
        group="q",
        sample=0,
    )
    batch = collate([[answer]])
    logp_N = torch.full((4,), -1.0, requires_grad=True)
    SftLoss()({Need.LOGP: logp_N}, batch, Totals.of(batch))[0].backward()
    assert logp_N.grad.tolist() == [0, 0, -0.5, -0.5]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{type(loss).__name__}-{LOSSES.index(loss)}")
@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_finite_differences(loss, seed):
    batch = random_batch(seed, poison=0.0)
    out = outputs(batch)
    needs = sorted(loss.needs)
    totals = Totals.of(batch)
    value = lambda *tensors: loss(dict(zip(needs, tensors, strict=True)), batch, totals)[0]  # noqa: E731
    assert torch.autograd.gradcheck(value, [out[n] for n in needs], eps=1e-7, atol=1e-5)


@settings(max_examples=60)
@given(seeds, st.sampled_from(LOSSES), st.data())
def test_any_split_and_order_gives_the_same_loss_gradient_and_metrics(seed, loss, data):
    """Micro-batches and ranks are the same thing to a loss: parts of the mini-batch."""
    batch = random_batch(seed)
    out, totals = outputs(batch), Totals.of(batch)
    whole, metrics = run(loss, batch, out, totals)
    order = data.draw(st.permutations(range(batch.S)))
    cuts = sorted(data.draw(st.lists(st.integers(0, batch.S), max_size=3)))
    shares, seen = [], []
    for a, b in zip([0, *cuts], [*cuts, batch.S], strict=True):
        part = torch.tensor(order[a:b], dtype=torch.int64)
        index_N = batch.token_index(part)
        share, m = run(loss, batch.select(part), {need: v[index_N] for need, v in out.items()}, totals)
        shares.append(share)
        seen.append(m)
    split_up = torch.stack(shares).sum()
    torch.testing.assert_close(split_up, whole, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradients(loss, split_up, out), gradients(loss, whole, out), rtol=1e-9, atol=1e-12)
    assert joined(seen) == pytest.approx(joined([metrics]), rel=1e-6, abs=1e-9)


@settings(max_examples=40)
@given(seeds, st.sampled_from(LOSSES), st.sampled_from([NAN, math.inf, -math.inf]))
def test_nothing_under_mask_0_reaches_loss_gradient_or_metrics(seed, loss, poison):
    clean, poisoned = random_batch(seed, poison=0.0), random_batch(seed, poison=poison)
    results = []
    for batch, fill in ((clean, 0.0), (poisoned, poison)):
        out = {
            need: v.detach().where(batch["mask_N"], torch.tensor(fill).double()).requires_grad_()
            for need, v in outputs(clean).items()
        }
        share, metrics = run(loss, batch, out, Totals.of(batch))
        results.append((share, gradients(loss, share, out), joined([metrics])))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]
    assert torch.isfinite(results[1][1]).all()
    assert all(map(math.isfinite, results[1][2].values()))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{type(loss).__name__}-{LOSSES.index(loss)}")
@pytest.mark.parametrize("masks", [[[0, 0], [0]], [], [[]]])
def test_nothing_produced_is_0_with_gradient_0(loss, masks):
    batch = batch_of(masks)
    for name in ("old_logp", "ref_logp", "rollout_logp", "advantages", "values", "returns", "correction"):
        batch.add(**{f"{name}_N": torch.full((batch.N,), NAN)})
    batch.add(selected_N=batch["mask_N"])
    out = {need: torch.full((batch.N,), NAN, requires_grad=True) for need in Need}
    share, metrics = run(loss, batch, out, Totals.of(batch))
    assert share.item() == 0
    assert (gradients(loss, share, out) == 0).all()
    assert all(map(math.isfinite, joined([metrics]).values()))


def test_ranks_with_1_and_99_tokens_weigh_by_tokens():
    batch = batch_of([[1], [1] * 99], old_logp_N=[-1.0] * 100, advantages_N=[1.0] * 100)
    out = {Need.LOGP: torch.full((100,), -1.0), Need.ENTROPY: torch.tensor([100.0] + [1.0] * 99)}
    totals = Totals.of(batch)
    ranks = [
        run(PPO, batch.select([s]), {n: v[i] for n, v in out.items()}, totals)
        for s, i in ((0, [0]), (1, range(1, 100)))
    ]
    seen = joined(metrics for _, metrics in ranks)
    assert seen["actor/entropy"] == pytest.approx(1.99)
    assert seen["actor/pg_loss"] == pytest.approx(-1.0)


def test_first_update_on_policy_is_the_policy_gradient():
    """With the weights that sampled, the ratio is 1: gradient -A / tokens, nothing clipped."""
    batch = batch_of([[0, 1, 1]], old_logp_N=[NAN, -0.5, -2.0], advantages_N=[NAN, 2.0, -1.0])
    out = {Need.LOGP: torch.tensor([0, -0.5, -2.0], requires_grad=True), Need.ENTROPY: torch.ones(3)}
    share, metrics = run(PPO, batch, out, Totals.of(batch))
    share.backward()
    assert out[Need.LOGP].grad.tolist() == pytest.approx([0, -1.0, 0.5])
    assert joined([metrics])["actor/pg_clipfrac"] == 0


def actor(**fields) -> ActorConfig:
    presets = {"loss_agg_mode": "token-mean", "use_kl_loss": False, "positive_lm_coef": 0.0}
    return ActorConfig(**presets | {"policy_loss": PolicyLossConfig("vanilla")} | fields)


def test_policy_loss_from_config():
    assert PolicyLoss.from_config(actor(), temperature=0.7) == PolicyLoss(temperature=0.7)
    full = actor(
        clip_ratio=0.3,
        clip_ratio_high=0.4,
        clip_ratio_c=5.0,
        entropy_coeff=0.01,
        use_kl_loss=True,
        kl_loss_type="k2",
        kl_loss_coef=0.02,
        loss_agg_mode="seq-mean-token-sum-norm",
        loss_scale_factor=512,
    )
    assert PolicyLoss.from_config(full, temperature=1.0, want_entropy=False) == PolicyLoss(
        options=Options(low=0.3, high=0.4, c=5.0),
        agg_mode="seq-mean-token-sum-norm",
        scale=512,
        entropy_coeff=0.01,
        kl_type="k2",
        kl_coef=0.02,
        want_entropy=False,
    )


def test_losses_ask_only_for_what_they_use():
    assert PolicyLoss().needs == {Need.LOGP, Need.ENTROPY}
    assert PolicyLoss(want_entropy=False).needs == {Need.LOGP}
    assert PolicyLoss(want_entropy=False, kl_type="full").needs == {Need.LOGP, Need.FULL_KL}
    assert PolicyLoss(want_entropy=False, entropy_coeff=0.1).needs == {Need.LOGP, Need.ENTROPY}
    assert ValueLoss().needs == {Need.VALUES}
    assert SftLoss().needs == {Need.LOGP}


def test_a_preset_left_null_is_refused_not_guessed():
    with pytest.raises(ValueError, match=r"actor\.loss_agg_mode is null"):
        PolicyLoss.from_config(actor(loss_agg_mode=None), 1.0)
    with pytest.raises(ValueError, match=r"actor\.use_kl_loss is null"):
        PolicyLoss.from_config(actor(use_kl_loss=None), 1.0)
    with pytest.raises(ValueError, match=r"critic\.loss_agg_mode is null"):
        ValueLoss.from_config(CriticConfig())
    with pytest.raises(UserError, match="no policy_loss named 'vanila'"):
        PolicyLoss.from_config(actor(policy_loss=PolicyLossConfig("vanila")), 1.0)


def test_value_loss_from_config():
    critic = CriticConfig(cliprange_value=0.3, loss_agg_mode="seq-mean-token-sum-norm")
    assert ValueLoss.from_config(critic, 24) == ValueLoss(0.3, "seq-mean-token-sum-norm", 24)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{type(loss).__name__}-{LOSSES.index(loss)}")
def test_losses_travel_to_other_processes(loss):
    assert pickle.loads(pickle.dumps(loss)) == loss
