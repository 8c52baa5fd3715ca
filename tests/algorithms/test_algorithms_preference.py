"""Every registered preference loss by name: the paper's value and gradient in plain Python (reference_preference.py),
values by hand, however the mini-batch is padded, ordered and cut; and what groups and other prompts' answers give."""

import math

import pytest
import reference_preference as paper
import torch
from algorithms_examples import NAN, batch_of, joined

from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.preference import Answers, Options
from verl_core.algorithms.preference.groups import best_and_worst, win_rate
from verl_core.algorithms.preference.loss import PreferenceLoss
from verl_core.algorithms.preference.mismatched import mismatched
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch
from verl_core.config import catalogue
from verl_core.config.compose import resolve
from verl_core.config.effective import effective

NAMES = catalogue.names("preference_loss", built=True)
OPTIONS = Options(
    beta=0.3,
    label_smoothing=0.1,
    simpo_gamma=0.7,
    orpo_weight=0.4,
    desirable_weight=1.3,
    undesirable_weight=0.6,
    sppo_eta=2.0,
    kl_baseline=0.2,
)
WINS = {"sppo": [0.75, 0.25, 0.5, 1.0, 0.0, 0.5, 1.0, 0.0]}


def of(name: str) -> PreferenceLoss:
    return PreferenceLoss(name, OPTIONS)


def example(name: str, seed: int = 0) -> tuple[Batch, torch.Tensor]:
    """Four pairs, not side by side, with tool text and prompts under NaN and inf; and log-probs [N]."""
    draw = torch.Generator().manual_seed(seed)
    masks = [[0, 1, 1], [0, 0, 1, 1, 0, 1], [0, 1], [1, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1, 1], [0, 0, 1], [0, 1, 1, 1]]
    win = WINS.get(name, [1.0, 0, 0, 1, 0, 1, 1, 0])
    batch = batch_of(masks, [0, 0, 1, 1, 2, 3, 2, 3], win_S=torch.tensor(win, dtype=torch.float32))
    logp_N, ref_logp_N = (-2 * torch.rand(batch.N, generator=draw, dtype=torch.float64) - 0.05 for _ in range(2))
    batch.add(ref_logp_N=torch.where(batch["mask_N"], ref_logp_N, NAN))
    return batch, torch.where(batch["mask_N"], logp_N, math.inf)


def answers_of(batch: Batch, logp_N: torch.Tensor) -> list[dict]:
    rows = []
    for s in range(batch.S):
        own = (batch.seq_N == s) & batch["mask_N"]
        rows.append({
            "logp": logp_N[own].tolist(),
            "ref": batch["ref_logp_N"][own].tolist(),
            "win": float(batch["win_S"][s]),
            "group": int(batch.group_S[s]),
        })  # fmt: skip
    return rows


def run(name: str, batch: Batch, logp_N: torch.Tensor, totals: Totals | None = None) -> tuple[torch.Tensor, dict]:
    return of(name)({Need.LOGP: logp_N}, batch, totals or Totals.of(batch))


@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradient_are_the_papers(name):
    batch, logp_N = example(name)
    logp_N.requires_grad_()
    loss, _ = run(name, batch, logp_N)
    assert float(loss) == pytest.approx(paper.loss(name, answers_of(batch, logp_N.detach()), OPTIONS), rel=1e-9)
    loss.backward()
    for i in range(batch.N):
        moved = []
        for step in (1e-6, -1e-6):
            there = logp_N.detach().clone()
            there[i] += step
            moved.append(paper.loss(name, answers_of(batch, there), OPTIONS))
        want = (moved[0] - moved[1]) / 2e-6 if batch["mask_N"][i] else 0.0
        assert float(logp_N.grad[i]) == pytest.approx(want, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_order_and_cut_change_nothing(name):
    batch, logp_N = example(name)
    loss, metrics = run(name, batch, logp_N)
    totals = Totals.of(batch)
    cuts = [[[7, 3, 1, 6, 0, 5, 4, 2]], [[0, 1, 4, 6], [2, 3, 5, 7]], [[0, 1], [2, 3], [4, 6], [5, 7]]]
    for cut in cuts:
        parts = [run(name, batch.select(own), logp_N[batch.token_index(torch.tensor(own))], totals) for own in cut]
        assert float(sum(share for share, _ in parts)) == pytest.approx(float(loss), rel=1e-12)
        assert joined(part for _, part in parts) == pytest.approx(joined([metrics]), rel=1e-6)


HAND = {  # two answers of two tokens, log-probs -1 and -2 each, the reference's -1.5 each: ratios 1 and -1
    "dpo": (Options(beta=0.5), math.log(1 + math.exp(-1))),
    "ipo": (Options(beta=0.5), 1.0),
    "hinge": (Options(beta=0.25), 0.5),
    "simpo": (Options(beta=2.0, simpo_gamma=0.5), math.log(1 + math.exp(-1.5))),
    "orpo": (Options(orpo_weight=1.0), 1 + math.log(1 + (math.e - 1) / (math.e**2 - 1))),  # odds 1/(e-1), 1/(e^2-1)
    "kto": (Options(beta=1.0, kl_baseline=0.5), 0.5 / (1 + math.exp(0.5)) + 0.5 / (1 + math.exp(1.5))),
    "sppo": (Options(sppo_eta=1.0), 0.25),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_by_hand(name):
    options, want = HAND[name]
    batch = batch_of([[0, 1, 1], [0, 1, 1]], [0, 0], win_S=torch.tensor([1.0, 0.0]), ref_logp_N=torch.full((6,), -1.5))
    logp_N = torch.tensor([0.0, -1, -1, 0, -2, -2])
    loss, _ = PreferenceLoss(name, options)({Need.LOGP: logp_N}, batch, Totals.of(batch))
    assert float(loss) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_produced_is_0_and_half_a_pair_is_finite(name):
    batch = batch_of([[0, 0], [0]], [0, 0], win_S=torch.tensor([1.0, 0.0]), ref_logp_N=torch.full((3,), NAN))
    logp_N = torch.full((3,), NAN, requires_grad=True)
    loss, metrics = run(name, batch, logp_N)
    loss.backward()
    assert float(loss.detach()) == 0 and logp_N.grad.tolist() == [0, 0, 0] and not any(joined([metrics]).values())

    half = batch_of([[0, 1], [0]], [0, 0], win_S=torch.tensor([1.0, 0.0]), ref_logp_N=torch.full((3,), -1.0))
    logp_N = torch.full((3,), -0.5, requires_grad=True)
    loss, _ = run(name, half, logp_N)
    loss.backward()
    assert Totals.of(half) == Totals(tokens=1, sequences=1, groups=1)
    assert loss.isfinite() and logp_N.grad.isfinite().all() and float(logp_N.grad[1]) < 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("logp", [-1e-9, 0.0, -1e4], ids=str)
def test_certain_and_impossible_answers_have_a_finite_gradient(name, logp):
    batch = batch_of([[0, 1], [0, 1]], [0, 0], win_S=torch.tensor([1.0, 0.0]), ref_logp_N=torch.full((4,), -1.0))
    logp_N = torch.tensor([0.0, logp, 0.0, -1.0], requires_grad=True)
    loss, _ = run(name, batch, logp_N)
    loss.backward()
    assert loss.isfinite() and logp_N.grad.isfinite().all()


def test_what_is_logged():
    batch, logp_N = example("dpo")
    logged = joined([run("dpo", batch, logp_N)[1]])
    rows = answers_of(batch, logp_N)
    chosen, rejected = ([OPTIONS.beta * paper.ratio(a) for a in rows if a["win"] == win] for win in (1, 0))
    assert logged["actor/rewards/chosen"] == pytest.approx(sum(chosen) / 4)
    assert logged["actor/rewards/rejected"] == pytest.approx(sum(rejected) / 4)
    assert logged["actor/rewards/margin"] == pytest.approx(sum(chosen) / 4 - sum(rejected) / 4)
    by_group = {a["group"]: 0.0 for a in rows}
    for a in rows:
        by_group[a["group"]] += paper.ratio(a) * (1 if a["win"] else -1)
    assert logged["actor/rewards/accuracy"] == sum(gap > 0 for gap in by_group.values()) / 4


@pytest.mark.parametrize("win", [[1.0, 1.0], [0.0, 0.0], [1.0]], ids=str)
def test_what_is_no_pair_is_refused(win):
    batch = batch_of([[1]] * len(win), [0] * len(win), win_S=torch.tensor(win), ref_logp_N=torch.zeros(len(win)))
    with pytest.raises(ValueError, match="one chosen and one rejected"):
        run("dpo", batch, torch.zeros(batch.N))
    assert run("kto", batch, torch.zeros(batch.N))[0].isfinite()


def test_which_losses_keep_groups_whole():
    assert {name for name in NAMES if of(name).whole_groups} == set(paper.PAIRS)
    assert {name for name in NAMES if not of(name).has_reference} == {"simpo", "orpo"}
    batch, logp_N = example("dpo")
    assert Answers.of(batch, produced(batch), logp_N, True).tokens_S.tolist() == [2, 3, 1, 3, 2, 4, 1, 3]


def test_the_loss_of_a_configuration():
    c = effective(resolve("smoke", ["algorithm.name=simpo", "algorithm.preference.simpo_gamma=1.5"]).config)
    loss = PreferenceLoss.from_config(c.algorithm.preference)
    assert (loss.name, loss.options.beta, loss.options.simpo_gamma) == ("simpo", 2.0, 1.5)


# --- groups ---------------------------------------------------------------------------------------------------------


def groups(rewards: list[float], of_group: list[int]) -> tuple[Batch, torch.Tensor]:
    return batch_of([[1]] * len(rewards), of_group), torch.tensor(rewards)


def test_best_and_worst():
    batch, reward_S = groups([1, 0, 0.5, 1, 1.00001, 1.0, 3, 3, 7], [0, 0, 0, 0, 1, 1, 2, 2, 3])
    assert best_and_worst(batch, reward_S).tolist() == [[0, 1], [4, 5]]  # equal rewards, and one answer: left out
    batch, reward_S = groups([1, 1], [0, 0])
    assert best_and_worst(batch, reward_S).shape == (0, 2)
    assert best_and_worst(*groups([NAN, 1.0, 0.0, 2.0], [0, 0, 1, 1])).tolist() == [[3, 2]]
    assert best_and_worst(*groups([], [])).shape == (0, 2)


def test_win_rate():
    batch, reward_S = groups([1, 0, 0, 1, 5, 2, 2], [0, 0, 0, 0, 1, 2, 2])
    assert win_rate(batch, reward_S).tolist() == [0.75, 0.25, 0.25, 0.75, 0.5, 0.5, 0.5]
    close, near_S = groups([1.00001, 1.0, 1.0], [1, 1, 0])
    assert win_rate(close, near_S).tolist() == [0.75, 0.25, 0.5]
    assert win_rate(*groups([], [])).tolist() == []


# --- other prompts' answers -----------------------------------------------------------------------------------------


def two_part(rows: list[tuple[int, list[int], list[int]]]) -> Batch:
    """Sequences of (group, prompt ids, answer ids)."""
    batch = batch_of([[0] * len(p) + [1] * len(a) for _, p, a in rows], [g for g, _, _ in rows])
    return batch.add(
        ids_N=torch.tensor([x for _, p, a in rows for x in p + a]),
        prompt_len_S=torch.tensor([len(p) for _, p, _ in rows]),
    )


def test_mismatched_answers_are_of_other_prompts():
    rows = [(0, [1], [10, 11]), (1, [2, 3], [20]), (0, [1], [12]), (1, [2, 3], [21, 22, 23]), (2, [4], [40])]
    mixed = mismatched(two_part(rows))
    ids = [mixed["ids_N"][mixed.seq_N == s].tolist() for s in range(mixed.S)]
    assert ids == [[1, 20], [1, 21, 22, 23], [2, 3, 40], [2, 3, 10, 11], [4, 12]]
    assert mixed["mask_N"].tolist() == [False, True] + [False] + [True] * 3 + [False, False, True] + [False] * 2 + [
        True, True, False, True,
    ]  # fmt: skip
    assert mixed["prompt_len_S"].tolist() == [1, 1, 2, 2, 1]


def test_one_prompt_alone_has_no_others():
    assert mismatched(two_part([(0, [1], [10]), (0, [1], [11])])).S == 0
