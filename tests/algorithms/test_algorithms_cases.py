"""Faults that other systems had in advantage and loss arithmetic: where each one is proven absent."""

import ast
from pathlib import Path

import pytest
import torch
from algorithms_examples import NAN, config, joined, padded, random_batch

from tests.conftest import ROOT
from tests.training.training_tiny import make_batch, make_engine, totals, weights, write_model
from verl_core.algorithms.advantages import compute_advantage
from verl_core.algorithms.loss import Need, Totals
from verl_core.algorithms.losses import PolicyLoss, SftLoss
from verl_core.algorithms.metrics import batch_metrics
from verl_core.algorithms.policy_loss import Options
from verl_core.algorithms.policy_loss.covariance import SELECTIONS, select_kl_cov
from verl_core.batch import Segment, Trajectory, collate
from verl_core.config import catalogue
from verl_core.config.compose import resolve
from verl_core.config.errors import UserError
from verl_core.training.protocol import MicroBatching

# What goes wrong elsewhere, and the tests that fail if it does here, below tests/.
HERE, EVERY = "algorithms/test_algorithms_cases.py", "algorithms/test_algorithms_every_loss.py"
ADVANTAGES, PACKING = "algorithms/test_algorithms_advantages.py", "batch/test_batch_packing.py"
CASES = {
    "A2": (
        "NaN and inf under mask 0, rows without tokens, a batch without any",
        (EVERY, "test_padding_and_what_stands_in_it_change_no_bit"),
        (EVERY, "test_nothing_produced_is_0_with_gradient_0"),
        (ADVANTAGES, "test_padding_and_what_stands_in_it_change_no_bit"),
        (ADVANTAGES, "test_degenerate_batches_stay_finite"),
        ("controller/test_update_algorithms.py", "test_what_is_no_log_prob_does_not_reach_the_coefficient_of_the_kl"),
    ),
    "A3": (
        "groups of one; statistics along the wrong axis",
        (HERE, "test_what_compares_answers_refuses_one"),
        (ADVANTAGES, "test_a_group_of_one_learns_nothing"),
        (ADVANTAGES, "test_grpo_statistics_are_those_of_each_row"),
    ),
    "A5": ("whitening gives padding a value", (ADVANTAGES, "test_padding_and_what_stands_in_it_change_no_bit")),
    "A7": (
        "a penalty written into an expanded tensor",
        (ADVANTAGES, "test_writing_into_two_tokens_changes_only_these"),
    ),
    "A8": (
        "a documented KL name crashes or is biased",
        (EVERY, "test_value_is_the_papers_however_the_mini_batch_is_cut"),
        (EVERY, "test_gradient_is_that_of_finite_differences"),
        ("algorithms/test_algorithms_kl.py", "test_gradient_is_unbiased"),
        ("algorithms/test_algorithms_kl.py", "test_value_is_unbiased"),
    ),
    "A10": (
        "micro-batches, ranks and padding change the loss",
        (EVERY, "test_value_is_the_papers_however_the_mini_batch_is_cut"),
        ("training/test_training_split.py", "test_loss_and_gradient_are_those_of_one_micro_batch_on_one_rank"),
    ),
    "A12": (
        "a turn gets the mask of another",
        (HERE, "test_each_turn_of_an_answer_is_trained_by_its_own_mask"),
        (
            "batch/test_batch_trajectory.py",
            "test_tool_text_between_two_turns_has_mask_0_and_each_turn_its_own_mask",
        ),
    ),
    "A14": (
        "nothing but aborted answers",
        (HERE, "test_a_batch_of_aborted_answers_has_metrics_advantages_and_a_loss_of_0"),
        ("controller/test_update.py", "test_a_batch_in_which_nothing_was_produced_changes_nothing"),
        ("controller/test_no_answers.py", "test_a_batch_without_any_answer_takes_no_step_and_logs_no_loss"),
    ),
    "A15": (
        "lengths overflow int32; a selection among more values than quantiles take",
        (PACKING, "test_int32_lengths_do_not_overflow"),
        ("batch/test_batch_ragged.py", "test_offsets_do_not_overflow_with_int32_lengths"),
        (HERE, "test_the_largest_covariances_of_more_tokens_than_torchs_quantile_takes"),
    ),
    "A16": (
        "padding moves a threshold; ranks weigh alike whatever they hold",
        (HERE, "test_padding_does_not_move_which_tokens_are_picked"),
        ("algorithms/test_algorithms_losses.py", "test_ranks_with_1_and_99_tokens_weigh_by_tokens"),
    ),
    "A17": (
        "permuted micro-batches lose their order or their metrics",
        (HERE, "test_permuted_micro_batches_come_back_in_order_and_all_count"),
        ("batch/test_batch_ragged.py", "test_values_of_permuted_micro_batches_find_their_place"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_tests(case):
    for file, name in CASES[case][1:]:
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (file, name)


# --- A3: what compares the answers to a prompt

COMPARING = [n for n in catalogue.names("algorithm", built=True) if "group" in catalogue.entry("algorithm", n).needs]


@pytest.mark.parametrize("name", COMPARING)
def test_what_compares_answers_refuses_one(name):
    words = [f"algorithm.name={name}", "rollout.n=1", *["algorithm.gdpo_reward_keys=[score]"] * (name == "gdpo")]
    with pytest.raises(UserError, match=rf"rollout.n=1 \(command line\): {name} .*compares the answers"):
        resolve("smoke", words)


# --- A12: turns of unlike length


def turns(*lengths: int, sample: int, reward: float) -> Trajectory:
    """A prompt of two tokens, and turns of these lengths with two tokens of tool text between."""
    mask, segments = [0, 0], [Segment("prompt", 0, 2)]
    for k, length in enumerate(lengths):
        if k:
            segments.append(Segment("tool", len(mask), len(mask) + 2))
            mask += [0, 0]
        segments.append(Segment("response", len(mask), len(mask) + length))
        mask += [1] * length
    ids, logps, versions = list(range(len(mask))), [-1.0 * m for m in mask], [m - 1 for m in mask]
    return Trajectory(ids, mask, logps, versions, segments, "q", sample, reward=reward)


def test_each_turn_of_an_answer_is_trained_by_its_own_mask():
    batch = collate([[turns(3, 1, sample=0, reward=1.0), turns(1, 4, 2, sample=1, reward=0.0)]])
    first, second = [0, 0, 1, 1, 1, 0, 0, 1], [0, 0, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1]
    assert batch["mask_N"].tolist() == [bool(m) for m in (*first, *second)]
    compute_advantage("rloo", batch, config())
    assert batch["advantages_N"].tolist() == [*first, *(-m for m in second)]
    batch.add(old_logp_N=batch["rollout_logp_N"])
    for loss, each in (
        (SftLoss(), (-1 / 11, -1 / 11)),
        (PolicyLoss(want_entropy=False), (-1 / 11, 1 / 11)),
        (PolicyLoss(want_entropy=False, agg_mode="seq-mean-token-mean"), (-1 / 4 / 2, 1 / 7 / 2)),
    ):
        logp_N = batch["rollout_logp_N"].clone().requires_grad_()
        loss({Need.LOGP: logp_N}, batch, Totals.of(batch))[0].backward()
        assert logp_N.grad.tolist() == pytest.approx([*(each[0] * m for m in first), *(each[1] * m for m in second)])


# --- A14: aborted answers


@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("name", catalogue.names("advantage", built=True))
def test_a_batch_of_aborted_answers_has_metrics_advantages_and_a_loss_of_0(name, count):
    rows = [turns(sample=k, reward=0.0) for k in range(count)]
    for t in rows:
        t.finish, t.meta["score_error"] = "abort", "nothing to score"
        t.meta["greedy_reward"] = 0.0
    batch = collate([rows] * (count > 0))
    blank = torch.full((batch.N,), NAN)
    batch.add(old_logp_N=blank, values_N=blank, sum_p_sq_N=blank)
    compute_advantage(name, batch, config())
    seen = batch_metrics(batch)
    assert torch.tensor(list(seen.values())).isfinite().all() and not batch["advantages_N"].any()
    assert seen["response/aborted_ratio"] == (1.0 if count else 0.0)
    share, metrics = PolicyLoss()({Need.LOGP: blank, Need.ENTROPY: blank}, batch, Totals.of(batch))
    assert share.item() == 0 and not any(joined([metrics]).values())


# --- A15, A16: picking tokens from a whole mini-batch


@pytest.mark.slow
def test_the_largest_covariances_of_more_tokens_than_torchs_quantile_takes():
    count = 2**24 + 1
    logp = torch.zeros(count)
    logp[torch.tensor([5, 2**24])] = 3.0
    picked = select_kl_cov(logp, logp, Options(kl_cov_ratio=2.2 / count), 0)
    assert sorted(picked.tolist()) == [5, 2**24]


@pytest.mark.parametrize("name", SELECTIONS)
def test_padding_does_not_move_which_tokens_are_picked(name):
    options = Options(clip_cov_ratio=0.3, clip_cov_lb=0.1, kl_cov_ratio=0.3)
    batch = random_batch(2, poison=0.0).drop("selected_N")
    wide = padded(batch, 100.0)  # most tokens are padding
    for each in (batch, wide):
        PolicyLoss(name, options).mark(each, 7)
    assert batch["selected_N"].any()
    assert torch.equal(wide["selected_N"][wide["mask_N"]], batch["selected_N"][batch["mask_N"]])


# --- A17: the engine packs sequences by length, not in order

LENGTHS = (9, 4, 12, 2, 7, 5)
PACKED = MicroBatching(tokens=14)  # 12 with 2, 9 with 5, 7 with 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def test_permuted_micro_batches_come_back_in_order_and_all_count(folder):
    batch = make_batch(LENGTHS)
    needs = frozenset({Need.LOGP, Need.ENTROPY})
    whole, packed = (make_engine(folder, micro=micro) for micro in (MicroBatching(sequences=6), PACKED))
    one, many = (engine.forward(batch, needs, micro=engine.micro) for engine in (whole, packed))
    for need in needs:
        torch.testing.assert_close(many[need], one[need], rtol=1e-5, atol=1e-6)
        assert not many[need][~batch["mask_N"]].any()
    batch.add(old_logp_N=one[Need.LOGP], advantages_N=batch["target_N"], ref_logp_N=one[Need.LOGP] - 0.1)
    loss = PolicyLoss(agg_mode="seq-mean-token-mean", entropy_coeff=0.1, kl_type="k2", kl_coef=0.5)
    want, got = (engine.step(batch, loss, totals(batch)) for engine in (whole, packed))
    assert got == pytest.approx(want, rel=1e-4, abs=1e-6)
    assert want["actor/entropy"] == pytest.approx(float(one[Need.ENTROPY].sum() / batch["mask_N"].sum()), rel=1e-5)
    assert want["actor/kl_loss"] == pytest.approx(0.005, rel=1e-4)  # 0.1^2 / 2 on every token, counted once
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(packed)[name], value, rtol=1e-5, atol=1e-6)
