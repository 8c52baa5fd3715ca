"""Every registered policy loss, KL estimator and aggregation, and the value loss, by name: the paper's value in plain
Python (reference_losses.py), its gradient by finite differences, and the same number however the mini-batch is padded,
ordered and cut into micro-batches and ranks. Values by hand: test_algorithms_policy_papers, _kl, _aggregate, _losses.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
import reference_losses as paper
import torch
from algorithms_examples import NAN, batch_of, joined, padded, produced_rows, random_batch

from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.losses import PolicyLoss, ValueLoss
from verl_core.algorithms.policy_loss import Options
from verl_core.batch import Batch
from verl_core.config import catalogue
from verl_core.config.loss_terms import FULL_KL

OPTIONS = Options(low=0.2, high=0.28, c=1.6, tau_pos=0.9, tau_neg=1.3, ppo_kl_coef=0.4, dro_beta=0.7)
SCALE = 7.0
POLICY_LOSSES = catalogue.names("policy_loss", built=True)
KL_NAMES = catalogue.names("kl", built=True)
MODES = catalogue.names("aggregation", built=True)
OUTPUTS = {Need.LOGP: "logp", Need.ENTROPY: "entropy", Need.VALUES: "value", Need.FULL_KL: "full_kl"}
COLUMNS = (*OUTPUTS.values(), "old_logp", "ref_logp", "advantages", "values", "returns", "selected")
Row = dict[str, list]


@dataclass(frozen=True)
class Subject:
    """A loss, and what the papers say each of a sequence's produced tokens loses; `held`: see reference_losses.py."""

    loss: PolicyLoss | ValueLoss
    tokens: Callable[[Row, Row], list[float]]


def policy(name: str, row: Row, held: Row) -> list[float]:
    return paper.LOSSES[name](row["logp"], held["logp"], row["old_logp"], row["advantages"], row["selected"], OPTIONS)


def with_kl(name: str, row: Row, held: Row) -> list[float]:
    """`full` comes from the engine, which has it from the whole vocabulary (tests/training)."""
    kls = row["full_kl"] if name == FULL_KL else paper.kl(name, row["logp"], held["logp"], row["ref_logp"])
    return [a + 0.3 * b for a, b in zip(policy("vanilla", row, held), kls, strict=True)]


def with_entropy(row: Row, held: Row) -> list[float]:
    return [a - 0.2 * b for a, b in zip(policy("vanilla", row, held), row["entropy"], strict=True)]


def squared(row: Row, held: Row) -> list[float]:
    return paper.value_loss(row["value"], row["values"], row["returns"], 0.3)


PLAIN = PolicyLoss(options=OPTIONS, scale=SCALE, want_entropy=False)
SUBJECTS = {
    **{name: Subject(replace(PLAIN, loss_mode=name), partial(policy, name)) for name in POLICY_LOSSES},
    **{f"kl={name}": Subject(replace(PLAIN, kl_type=name, kl_coef=0.3), partial(with_kl, name)) for name in KL_NAMES},
    "entropy": Subject(replace(PLAIN, entropy_coeff=0.2), with_entropy),
    "value": Subject(ValueLoss(0.3, scale=SCALE), squared),
}


@cache
def example(seed: int = 3) -> Batch:
    """A batch with what an engine gives besides: near the old values, so that both sides of every bound occur."""
    batch = random_batch(seed, prompts=2, poison=0.0)
    g = torch.Generator().manual_seed(seed)
    near = lambda: 0.5 * torch.randn(batch.N, generator=g, dtype=torch.float64)  # noqa: E731
    batch.add(old_logp_N=batch["old_logp_N"] - 0.01)
    logp_N = (batch["old_logp_N"] + near()).clamp(max=-0.005)
    return batch.add(logp_N=logp_N, entropy_N=near().abs(), full_kl_N=near().abs(), value_N=batch["values_N"] + near())


def run(loss, batch, totals=None):
    """A share of the loss, its gradient for each output (zero under mask 0) and its metrics."""
    out = {need: batch[f"{OUTPUTS[need]}_N"].detach().requires_grad_() for need in sorted(loss.needs)}
    share, metrics = loss(out, batch, totals or Totals.of(batch))
    gradients = torch.autograd.grad(share, list(out.values()), materialize_grads=True)
    return share.item(), torch.stack(gradients), metrics


def expected(subject: Subject, batch, mode: str) -> float:
    rows = produced_rows(batch, COLUMNS)
    return paper.aggregate([subject.tokens(row, row) for row in rows], mode, SCALE)


def slopes(subject: Subject, batch, mode: str, need: Need, step: float = 1e-6) -> list[float]:
    """Central differences of the paper's loss in each produced token's output."""
    rows, name, out = produced_rows(batch, COLUMNS), OUTPUTS[need], []
    losses = [subject.tokens(row, row) for row in rows]
    for s, row in enumerate(rows):
        for t in range(len(row[name])):
            sides = []
            for d in (step, -step):
                moved = row | {name: [x + d * (i == t) for i, x in enumerate(row[name])]}
                sides.append(paper.aggregate([*losses[:s], subject.tokens(moved, row), *losses[s + 1 :]], mode, SCALE))
            out.append((sides[0] - sides[1]) / (2 * step))
    return out


def test_every_name_has_its_formula():
    assert set(paper.LOSSES) == set(POLICY_LOSSES)
    assert all(paper.kl(name, [-1.0], [-1.0], [-1.0]) == [0.0] for name in KL_NAMES if name != FULL_KL)
    assert all(paper.aggregate([[1.0]], mode, 1.0) == 1.0 for mode in MODES)


EACH_ONCE = list(zip(SUBJECTS, itertools.cycle(MODES)))  # and every aggregation with some


@pytest.mark.parametrize(("subject", "mode"), EACH_ONCE)
def test_gradient_is_that_of_finite_differences(subject, mode):
    subject, batch = SUBJECTS[subject], example()
    loss = replace(subject.loss, agg_mode=mode)
    _, gradient, _ = run(loss, batch)
    for k, need in enumerate(sorted(loss.needs)):
        own = gradient[k][batch["mask_N"]]
        assert own.tolist() == pytest.approx(slopes(subject, batch, mode, need), rel=1e-6, abs=1e-8)


CUTS = {
    "the other way round": lambda S: [range(S)[::-1]],
    "two micro-batches": lambda S: [range(S // 2), range(S // 2, S)],
    "four micro-batches": lambda S: [range(k, S, 4) for k in range(4)],
    "two ranks": lambda S: [range(0, S, 2), range(1, S, 2)],
    "two ranks with two micro-batches each": lambda S: [range(k, S, 4) for k in (0, 2, 3, 1)],
}


@cache
def cut(name: str) -> list[tuple[torch.Tensor, Batch]]:
    """The example's parts, and which of its tokens they have."""
    batch = example()
    parts = [torch.tensor(list(part)) for part in CUTS[name](batch.S)]
    return [(batch.token_index(index_S), batch.select(index_S)) for index_S in parts]


@pytest.mark.parametrize(
    ("subject", "mode"), sorted({*EACH_ONCE, *itertools.product([*POLICY_LOSSES, "value"], MODES)})
)
def test_value_is_the_papers_however_the_mini_batch_is_cut(subject, mode):
    subject = SUBJECTS[subject]
    loss, batch = replace(subject.loss, agg_mode=mode), example()
    for seed in (1, 2, 3):
        assert run(loss, example(seed))[0] == pytest.approx(expected(subject, example(seed), mode), rel=1e-7, abs=1e-9)
    totals = Totals.of(batch)
    value, gradient, metrics = run(loss, batch)
    for name in CUTS:
        total, at, seen = 0.0, torch.zeros_like(gradient), []
        for index_N, part in cut(name):
            share, slope, metric = run(loss, part, totals)
            total += share
            at[:, index_N] = slope
            seen.append(metric)
        assert total == pytest.approx(value, rel=1e-12, abs=1e-14), name
        torch.testing.assert_close(at, gradient, rtol=1e-12, atol=1e-14)
        assert joined(seen) == pytest.approx(joined([metrics]), rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("fill", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_padding_and_what_stands_in_it_change_no_bit(subject, fill):
    """Case A2: NaN and inf under mask 0 reach neither value nor gradient nor metric."""
    loss, batch = replace(SUBJECTS[subject].loss, agg_mode="seq-mean-token-mean"), example()
    wide = padded(batch, fill)
    value, gradient, metrics = run(loss, batch)
    padded_value, padded_gradient, padded_metrics = run(loss, wide)
    assert padded_value == value and joined([padded_metrics]) == joined([metrics])
    assert torch.equal(padded_gradient[:, wide["mask_N"]], gradient[:, batch["mask_N"]])
    assert not padded_gradient[:, ~wide["mask_N"]].any()


def degenerate(masks, advantages):
    batch = batch_of(masks)
    fill = {name: torch.full((batch.N,), -0.7, dtype=torch.float64) for name in COLUMNS}
    columns = fill | {"advantages": torch.tensor(advantages).double(), "selected": batch["mask_N"]}
    columns["logp"] = columns["logp"] + 0.1 * torch.arange(batch.N)
    return batch.add(**{f"{name}_N": value for name, value in columns.items()})


DEGENERATE = {
    "one token": ([[0, 1]], [0.0, 1.5]),
    "one token of advantage 0": ([[0, 1]], [0.0, 0.0]),
    "all rewards equal": ([[1, 1], [0, 1]], [0.0] * 4),
    "rewards of 1.00000 and 1.00001": ([[1, 1], [0, 1]], [5e-6, 5e-6, 0.0, -5e-6]),
}


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_degenerate_batches_have_the_papers_value(subject, case):
    batch = degenerate(*DEGENERATE[case])
    value, gradient, metrics = run(SUBJECTS[subject].loss, batch)
    assert value == pytest.approx(expected(SUBJECTS[subject], batch, "token-mean"), rel=1e-7, abs=1e-15)
    assert gradient.isfinite().all() and all(map(math.isfinite, joined([metrics]).values()))


HELD_TO_THE_OLD_POLICY = {"kl_cov", "dro"}


@pytest.mark.parametrize("name", sorted(set(POLICY_LOSSES) - HELD_TO_THE_OLD_POLICY))
def test_equal_rewards_move_nothing(name):
    value, gradient, _ = run(SUBJECTS[name].loss, degenerate(*DEGENERATE["all rewards equal"]))
    assert value == 0 and not gradient.any()


@pytest.mark.parametrize("masks", [[[0, 0], [0]], [], [[]]])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_nothing_produced_is_0_with_gradient_0(subject, masks):
    batch = batch_of(masks)
    columns = {f"{name}_N": torch.full((batch.N,), NAN) for name in COLUMNS}
    batch.add(**columns | {"selected_N": batch["mask_N"]})
    for mode in MODES:
        value, gradient, metrics = run(replace(SUBJECTS[subject].loss, agg_mode=mode), batch)
        assert value == 0 and not gradient.any() and all(map(math.isfinite, joined([metrics]).values()))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_the_rollout_correction_weighs_every_loss_and_leaves_what_it_rejects_out(name, mode):
    """A rejected token is not there for the loss, means over its sequence included, and stays in every divisor."""
    batch = example().drop()
    rejected_N = (batch["correction_N"] == 0) & batch["mask_N"]
    batch.add(logp_N=batch["logp_N"].masked_fill(rejected_N, -math.inf))  # a NaN in a gradient, were it looked at
    rows = []
    for row in produced_rows(batch, (*COLUMNS, "correction")):
        factors = row["correction"]
        kept = {key: [x for x, f in zip(part, factors, strict=True) if f] for key, part in row.items()}
        losses = iter(policy(name, kept, kept) if kept["logp"] else [])
        rows.append([f * next(losses) if f else 0.0 for f in factors])
    value, gradient, metrics = run(replace(PLAIN, loss_mode=name, agg_mode=mode, corrected=True), batch)
    assert rejected_N.any() and value == pytest.approx(paper.aggregate(rows, mode, SCALE), rel=1e-7, abs=1e-9)
    assert gradient.isfinite().all() and not gradient[:, rejected_N].any()
    assert all(map(math.isfinite, joined([metrics]).values()))
