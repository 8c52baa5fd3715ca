"""On-policy distillation: the estimators as advantages and as a loss, and the forward KL on the teacher's likeliest
tokens, against plain float64 arithmetic, values by hand, finite differences and degenerate inputs."""

import math

import pytest
import torch
from algorithms_examples import NAN, batch_of, joined, padded

from verl_core.algorithms.distillation import (
    TAIL_FLOOR,
    DistillationLoss,
    distilled_advantage,
    forward_kl_topk,
    teacher_metrics,
)
from verl_core.algorithms.kl import ESTIMATORS
from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.losses import PolicyLoss
from verl_core.batch import Batch
from verl_core.config.schema import DistillationConfig

MASKS = [[0, 1, 1], [0, 0, 1, 1, 0, 1], [0, 1, 1, 1], [0, 0]]


def example(seed: int = 0) -> Batch:
    """Four answers, one of which is empty, with tool text; NaN and inf under mask 0."""
    draw = torch.Generator().manual_seed(seed)
    batch = batch_of(MASKS, [0, 0, 1, 1])
    for name, poison in (("old_logp_N", NAN), ("teacher_logp_N", math.inf), ("logp_N", NAN)):
        value_N = -3 * torch.rand(batch.N, generator=draw, dtype=torch.float64) - 0.01
        batch.add(**{name: torch.where(batch["mask_N"], value_N, poison)})
    return batch.add(advantages_N=torch.zeros(batch.N, dtype=torch.float64))


def loss_of(batch: Batch, logp_N: torch.Tensor, totals: Totals | None = None, mode="token-mean", **how):
    loss = DistillationLoss(agg_mode=mode, want_entropy=False, how=DistillationConfig(use_policy_gradient=False, **how))
    return loss({Need.LOGP: logp_N}, batch, totals or Totals.of(batch))


# --- the estimate as an advantage


def test_the_advantage_of_k1_is_how_much_likelier_the_teacher_makes_the_token():
    batch = batch_of([[0, 1, 1]], old_logp_N=[NAN, -1.0, -0.5], teacher_logp_N=[NAN, -0.25, -2.0])
    assert distilled_advantage(batch, DistillationConfig(coef=2.0)).tolist() == [0, 1.5, -3.0]


def test_clamps_bound_the_size_of_an_advantage_and_what_log_probs_count_as():
    batch = batch_of([[1, 1, 1]], old_logp_N=[-1.0, -9.0, -3.0], teacher_logp_N=[-9.0, -1.0, -3.5])
    bounded = distilled_advantage(batch, DistillationConfig(loss_max_clamp=2.0))
    assert bounded.tolist() == [-2.0, 2.0, -0.5]
    floored = distilled_advantage(batch, DistillationConfig(log_prob_min_clamp=-4.0))
    assert floored.tolist() == [-3.0, 3.0, -0.5]


@pytest.mark.parametrize("mode", ESTIMATORS)
def test_the_advantage_is_the_estimates_negative_and_needs_no_place(mode):
    batch = example()
    how = DistillationConfig(loss_mode=mode, coef=0.5)
    out_N = distilled_advantage(batch, how)
    for i in range(batch.N):
        if not batch["mask_N"][i]:
            assert out_N[i] == 0
            continue
        estimate = ESTIMATORS[mode](batch["old_logp_N"][i], batch["teacher_logp_N"][i])
        assert float(out_N[i]) == pytest.approx(-0.5 * float(estimate), rel=1e-6)
    wide = padded(batch, NAN)
    assert distilled_advantage(wide, how)[wide["mask_N"]].tolist() == out_N[batch["mask_N"]].tolist()


# --- the estimate as a loss


@pytest.mark.parametrize("mode", [name for name in ESTIMATORS if name not in ("kl", "k1")])
@pytest.mark.parametrize("agg", ["token-mean", "seq-mean-token-mean"])
def test_back_propagated_it_is_the_aggregated_estimate_in_one_or_several_micro_batches(mode, agg):
    batch = example()
    logp_N = batch["logp_N"].requires_grad_()
    loss, metrics = loss_of(batch, logp_N, mode=agg, loss_mode=mode, coef=3.0)
    rows = [(batch.seq_N == s) & batch["mask_N"] for s in range(3)]
    means = [ESTIMATORS[mode](logp_N[row], batch["teacher_logp_N"][row]).mean() for row in rows]
    sizes = [int(row.sum()) for row in rows]
    expected = (
        sum(means) / 3
        if agg == "seq-mean-token-mean"
        else sum(m * n for m, n in zip(means, sizes, strict=True)) / sum(sizes)
    )
    assert float(loss) == pytest.approx(3.0 * float(expected), rel=1e-12)
    (whole_N,) = torch.autograd.grad(loss, logp_N)
    assert not whole_N[~batch["mask_N"]].any() and whole_N.isfinite().all()
    parts, shares = [], torch.zeros((), dtype=torch.float64)
    for index in ([2, 0], [3], [1]):
        mini = batch.select(index)
        share, part = loss_of(mini, logp_N[batch.token_index(torch.tensor(index))], Totals.of(batch), agg,
                              loss_mode=mode, coef=3.0)  # fmt: skip
        parts.append(part)
        shares = shares + share
    (cut_N,) = torch.autograd.grad(shares, logp_N)
    torch.testing.assert_close(cut_N, whole_N)
    assert joined(parts)["distillation/loss"] == pytest.approx(joined([metrics])["distillation/loss"])


def test_the_gradient_of_k2_is_the_reverse_kls_on_policy():
    """E over the student's tokens of grad k2 = grad KL(student, teacher), on a vocabulary small enough to sum over."""
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([0.1, 0.7, -0.4], dtype=torch.float64).log_softmax(0)
    student = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((student.exp() * (student - teacher)).sum(), logits, retain_graph=True)
    weights = student.detach().exp()
    estimate = (weights * ESTIMATORS["k2"](student, teacher)).sum()
    torch.testing.assert_close(torch.autograd.grad(estimate, logits)[0], exact)


def test_the_policy_loss_stays_beside_it():
    batch = example()
    batch.add(advantages_N=torch.where(batch["mask_N"], 0.7, NAN).double())
    out = {Need.LOGP: batch["logp_N"]}
    task, _ = PolicyLoss(want_entropy=False)(out, batch, Totals.of(batch))
    distilled, _ = loss_of(batch.drop().add(advantages_N=torch.zeros(batch.N)), batch["logp_N"], loss_mode="k2")
    both, metrics = loss_of(batch, batch["logp_N"], loss_mode="k2")
    assert float(both) == pytest.approx(float(task) + float(distilled), rel=1e-12)
    assert joined([metrics])["actor/pg_loss"] == pytest.approx(float(task))


def test_without_a_produced_token_there_is_no_loss():
    batch = batch_of([[0, 0], [0]], teacher_logp_N=[NAN] * 3, old_logp_N=[NAN] * 3, advantages_N=[NAN] * 3)
    loss, _ = loss_of(batch, torch.full((3,), NAN), loss_mode="k2")
    assert float(loss) == 0 and not distilled_advantage(batch, DistillationConfig()).any()
    assert teacher_metrics(batch) == {}


# --- forward KL on the teacher's likeliest tokens


def lumped_kl(p: list[float], q: list[float]) -> float:
    """KL of two lists of probabilities with what is left as one more outcome."""
    outcomes = [*zip(p, q, strict=True), (1 - sum(p), 1 - sum(q))]
    return sum(a * math.log(a / b) for a, b in outcomes if a)


def test_it_is_the_kl_of_the_k_tokens_and_the_rest_as_one():
    p, q = [[0.5, 0.25], [0.6, 0.3]], [[0.25, 0.25], [0.6, 0.3]]
    found = forward_kl_topk(torch.tensor(q).double().log(), torch.tensor(p).double().log())
    assert found.tolist() == pytest.approx([0.5 * math.log(2) + 0.25 * math.log(0.5), 0.0], abs=1e-7)
    assert found.tolist() == pytest.approx([lumped_kl(*pair) for pair in zip(p, q, strict=True)], abs=1e-7)


def test_it_is_a_lower_bound_and_with_all_tokens_the_kl_itself():
    draw = torch.Generator().manual_seed(3)
    teacher_MV, student_MV = (
        (2 * torch.randn(20, 12, generator=draw, dtype=torch.float64)).log_softmax(-1) for _ in range(2)
    )
    whole_M = (teacher_MV.exp() * (teacher_MV - student_MV)).sum(-1)
    before_M = torch.zeros(20, dtype=torch.float64)
    for k in (1, 3, 8, 12):
        teacher_MK, ids_MK = teacher_MV.topk(k)
        kl_M = forward_kl_topk(student_MV.gather(1, ids_MK), teacher_MK)
        assert (kl_M >= before_M - 2 * TAIL_FLOOR).all() and (kl_M <= whole_M + 2 * TAIL_FLOOR).all()
        before_M = kl_M
    torch.testing.assert_close(before_M, whole_M)


def test_its_gradient_is_the_slope_of_its_value():
    draw = torch.Generator().manual_seed(4)
    logits_MV = torch.randn(3, 9, generator=draw, dtype=torch.float64, requires_grad=True)
    teacher_MK, ids_MK = torch.randn(3, 9, generator=draw, dtype=torch.float64).log_softmax(-1).topk(4)

    def kl(logits_MV: torch.Tensor) -> torch.Tensor:
        return forward_kl_topk(logits_MV.log_softmax(-1).gather(1, ids_MK), teacher_MK)

    assert torch.autograd.gradcheck(kl, logits_MV, fast_mode=True)


def test_a_token_that_only_the_teachers_output_layer_has_counts_among_the_rest():
    some = forward_kl_topk(torch.tensor([[0.3, 0.2]]).double().log(), torch.tensor([[0.5, 0.0]]).double().log())
    assert float(some) == pytest.approx(lumped_kl([0.5], [0.3]))


def test_certain_teacher_and_student_have_a_finite_loss():
    certain = torch.tensor([[0.0, -80.0]])
    for student in (certain, torch.tensor([[-40.0, -1e-3]]), torch.tensor([[-0.1, -2.5]])):
        student = student.clone().requires_grad_()
        kl = forward_kl_topk(student, certain).sum()
        kl.backward()
        assert kl.isfinite() and student.grad.isfinite().all() and kl > -2 * TAIL_FLOOR


def test_the_forward_kl_as_a_loss_reads_the_given_tokens():
    batch = example()
    teacher_NK = torch.tensor([0.5, 0.25]).log().expand(batch.N, 2).clone()
    given_NK = torch.where(batch["mask_N"][:, None], torch.tensor([0.25, 0.25]).log(), NAN).requires_grad_()
    batch.add(teacher_topk_logp_NK=torch.where(batch["mask_N"][:, None], teacher_NK, NAN))
    loss = DistillationLoss(
        want_entropy=False, how=DistillationConfig(loss_mode="forward_kl_topk", use_policy_gradient=False, coef=2.0)
    )
    assert loss.needs == {Need.LOGP, Need.GIVEN}
    value, _ = loss({Need.LOGP: batch["logp_N"], Need.GIVEN: given_NK}, batch, Totals.of(batch))
    assert float(value) == pytest.approx(2 * lumped_kl([0.5, 0.25], [0.25, 0.25]), rel=1e-5)
    value.backward()
    assert given_NK.grad.isfinite().all() and not given_NK.grad[~batch["mask_N"]].any()
    assert teacher_metrics(batch)["distillation/topk_mass"] == pytest.approx(0.75)
