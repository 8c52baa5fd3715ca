import pytest
import torch
from algorithms_examples import batch_of, random_batch

from verl_core.algorithms.advantages import compute_advantage
from verl_core.algorithms.advantages.reweight import draw_weights, reweighted
from verl_core.config.schema import AlgorithmConfig

REWARDS = [3.0, -1.0, 1.0, 0.0, 0.0, 2.0, 2.0, 0.5]
GROUPS = [0, 0, 0, 1, 1, 2, 2, 2]


def batch():
    made = batch_of([[0, 1, 1]] * 8, GROUPS, reward_S=REWARDS, row_S=list(range(8)))
    return made.add(values_N=torch.arange(24.0), advantages_N=torch.arange(24.0) * 10)


def draw(made, method="pow", power=2.0, seed=0):
    return reweighted(made, method, power, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("method", "expect"),
    [
        ("pow", [9, 1, 1, 0, 0, 4, 4, 0.25]),
        ("max_min", [1, 1, 0, 1, 1, 1, 1, 1]),
        ("max_random", [0.4, 0.1, 0.1, 0.4, 0.4, 0.4, 0.4, 0.1]),
    ],
)
def test_weights_by_hand(method, expect):
    """Best and worst are those of the prompt's own answers."""
    assert draw_weights(batch(), method).tolist() == pytest.approx(expect, abs=1e-7)


@pytest.mark.parametrize("method", ["pow", "max_min", "max_random"])
def test_rows_and_advantages_stay_together_and_groups_in_place(method):
    before, after = batch(), draw(batch(), method)
    assert after.group_S.tolist() == GROUPS
    for place, row in enumerate(after["row_S"].tolist()):
        assert GROUPS[row] == GROUPS[place]
        for name in ("advantages_N", "values_N"):
            assert after[name].reshape(8, 3)[place].tolist() == before[name].reshape(8, 3)[row].tolist()
        assert after["reward_S"][place] == REWARDS[row]


def test_what_has_no_weight_is_not_drawn():
    drawn = [row for seed in range(50) for row in draw(batch(), "max_min", seed=seed)["row_S"].tolist()]
    assert 2 not in drawn and {0, 1} < set(drawn)


def test_draws_follow_the_weights():
    """9, 1 and 1 of 11 parts: the first answer 0.818 of the time; six standard errors are 0.07."""
    drawn = torch.cat([draw(batch(), seed=seed)["row_S"][:3] for seed in range(400)])
    assert (drawn == 0).double().mean().item() == pytest.approx(9 / 11, abs=0.07)


def test_the_seed_decides():
    assert draw(batch(), seed=4)["row_S"].tolist() == draw(batch(), seed=4)["row_S"].tolist()
    assert len({tuple(draw(batch(), seed=s)["row_S"].tolist()) for s in range(20)}) > 1


def test_groups_of_one_and_empty_batches_are_left_alone():
    single = batch_of([[1], [1]], [0, 1], reward_S=[0.0, 5.0], row_S=[0, 1])
    assert draw(single)["row_S"].tolist() == [0, 1]
    assert draw(batch_of([], [], reward_S=[])).S == 0


def test_advantages_are_those_of_the_whole_batch():
    made = compute_advantage("gae", random_batch(3), AlgorithmConfig())
    known = {tuple(part.tolist()) for part in made["advantages_N"].split(made.length_S.tolist())}
    after = draw(made, "max_random")
    assert {tuple(part.tolist()) for part in after["advantages_N"].split(after.length_S.tolist())} <= known
