"""Advantage estimators: properties that each of them has, by name. Against the papers: test_algorithms_papers."""

import math

import pytest
import reference_advantages as paper
import torch
from algorithms_examples import NAN, batch_of, complete, config, padded, random_batch, split

from verl_core.algorithms.advantages import (
    compute_advantage,
    gae,
    grpo,
    rloo,
    sequence_rewards,
    token_rewards,
)
from verl_core.config import catalogue, registry
from verl_core.config.errors import UserError
from verl_core.config.schema import AlgorithmConfig

ESTIMATORS = catalogue.names("advantage", built=True)
GROUPED = [name for name in ESTIMATORS if "group" in catalogue.entry("advantage", name).needs]


def flat(rows):
    return torch.tensor([x for row in rows for x in row], dtype=torch.float32)


def broadcast(values, masks):
    return flat([[v if m else 0.0 for m in mask] for v, mask in zip(values, masks, strict=True)])


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (0.5, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("seed", range(8))
def test_gae_is_the_token_loop(seed, gamma, lam):
    batch = random_batch(seed)
    rewards, values, masks = (split(batch[name], batch) for name in ("token_reward_N", "values_N", "mask_N"))
    advantages, returns = paper.gae(rewards, values, masks, gamma, [lam] * batch.S, lam)
    advantages_N, returns_N = gae(batch, batch["token_reward_N"], batch["values_N"], gamma, lam)
    torch.testing.assert_close(advantages_N, flat(paper.whiten(advantages, masks)), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(returns_N, flat(returns), rtol=1e-5, atol=1e-6)


def test_gae_worked_by_hand():
    """delta = (0 + .5*.4 - .6, 1 + 0 - .4) = (-.4, .6); A = (-.4 + .5*.5*.6, .6) = (-.25, .6); returns (.35, 1)."""
    batch = batch_of([[0, 1, 1]])
    advantages_N, returns_N = gae(batch, torch.tensor([0.0, 0.0, 1.0]), torch.tensor([9.0, 0.6, 0.4]), 0.5, 0.5)
    torch.testing.assert_close(returns_N, torch.tensor([0.0, 0.35, 1.0]))
    # whitened: -+ half the distance over the standard deviation (.85 / sqrt 2) = -+ 1 / sqrt 2
    torch.testing.assert_close(advantages_N, torch.tensor([0.0, -(0.5**0.5), 0.5**0.5]), rtol=1e-6, atol=1e-6)


def test_gae_over_a_long_sequence_beside_short_ones():
    length = [1000, 1, 3, 517]
    batch = batch_of([[1] * n for n in length])
    g = torch.Generator().manual_seed(0)
    reward_N = torch.randn(batch.N, generator=g, dtype=torch.float64)
    value_N = torch.randn(batch.N, generator=g, dtype=torch.float64)
    masks, lams = split(batch["mask_N"], batch), [0.95] * 4
    _, slow = paper.gae(split(reward_N, batch), split(value_N, batch), masks, 0.99, lams, 0.95)
    _, returns_N = gae(batch, reward_N, value_N, 0.99, 0.95)
    torch.testing.assert_close(returns_N, flat(slow), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name != "optimal_token_baseline"])
def test_tool_text_between_turns_changes_nothing(estimator):
    plain = batch_of([[0, 1, 1, 1], [0, 1, 1]], [0, 0], values_N=[9.0, 0.1, 0.2, 0.3, 9.0, 0.4, 0.5])
    tools = batch_of(
        [[0, 1, 0, 0, 1, 1], [0, 1, 1, 0]], [0, 0], values_N=[NAN, 0.1, NAN, NAN, 0.2, 0.3, NAN, 0.4, 0.5, NAN]
    )
    for batch in (plain, tools):
        batch.add(reward_S=torch.tensor([1.0, 0.0]))
        compute_advantage(estimator, complete(batch), config(gamma=0.9, lam=0.8))
    assert torch.equal(plain["advantages_N"][plain["mask_N"]], tools["advantages_N"][tools["mask_N"]])
    assert (tools["advantages_N"][~tools["mask_N"]] == 0).all()


def test_grpo_statistics_are_those_of_each_row():
    table = torch.tensor([[0.0, 0.0, 1.0, 1.0, 3.0], [7.0, 8.0, 9.0, 10.0, 11.0]])
    batch = batch_of([[1]] * 10, [0] * 5 + [1] * 5)
    adv = grpo(batch, table.flatten()).reshape(2, 5)
    torch.testing.assert_close(adv.mean(1), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(adv.std(1), torch.ones(2), atol=1e-5, rtol=0)


def test_grpo_and_rloo_worked_by_hand():
    batch = batch_of([[0, 1, 1], [0, 1], [0, 1], [0, 1, 1]], [0, 0, 0, 0])
    reward_S = torch.tensor([1.0, 0.0, 0.0, 1.0])  # mean .5, unbiased std sqrt(1/3)
    unit = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    torch.testing.assert_close(grpo(batch, reward_S), unit * torch.tensor([0, 1, 1, 0, -1, 0, -1, 0, 1.0, 1.0]))
    third = 2 / 3
    torch.testing.assert_close(rloo(batch, reward_S), third * torch.tensor([0, 1, 1, 0, -1, 0, -1, 0, 1.0, 1.0]))


@pytest.mark.parametrize("estimator", GROUPED)
def test_a_group_of_one_learns_nothing(estimator):
    """Case A3: nothing to compare with. The optimal token baselines have none there and leave the return."""
    batch = batch_of([[1, 1], [1], [1]], [0, 1, 1], reward_S=[5.0, 1.0, 0.0])
    compute_advantage(estimator, complete(batch), config(norm_adv_by_std_in_grpo=False))
    own, better, worse = batch["advantages_N"][0].item(), *batch["advantages_N"][2:].tolist()
    assert own == (5.0 if "optimal_token" in estimator else 0.0)
    assert better > worse


def test_token_rewards_on_the_last_produced_token_less_kl():
    batch = batch_of([[0, 1, 1, 0], [0, 0], [1]], reward_S=[2.0, 5.0, 1.0])
    kl_N = torch.tensor([NAN, 0.5, 1.0, NAN, NAN, NAN, -0.5])
    torch.testing.assert_close(token_rewards(batch), torch.tensor([0, 0, 2.0, 0, 0, 0, 1.0]))
    with_kl_N = token_rewards(batch, 0.1, kl_N)
    torch.testing.assert_close(with_kl_N, torch.tensor([0, -0.05, 1.9, 0, 0, 0, 1.05]))
    # the sequence without a produced token keeps its reward in its group's statistics
    batch.add(token_reward_N=with_kl_N)
    torch.testing.assert_close(sequence_rewards(batch), torch.tensor([1.85, 5.0, 1.05]).double())


def test_group_estimators_see_the_kl_penalty():
    batch = batch_of([[1, 1], [1, 1]], [0, 0], reward_S=[1.0, 1.0])
    batch.add(token_reward_N=token_rewards(batch, 1.0, torch.tensor([0.3, 0.3, 0.0, 0.0])))
    compute_advantage("rloo", batch, AlgorithmConfig())
    torch.testing.assert_close(batch["advantages_N"], torch.tensor([-0.6, -0.6, 0.6, 0.6]))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_writing_into_two_tokens_changes_only_these(estimator):
    """A column must have memory of its own: a broadcast view would share one number among all tokens of a row."""
    batch = batch_of([[1, 1, 1], [1, 1, 1]], [0, 0], reward_S=[1.0, 0.0], values_N=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    compute_advantage(estimator, complete(batch.add(token_reward_N=token_rewards(batch))), config())
    for name in ("advantages_N", "token_reward_N", "returns_N"):
        if name in batch:
            before = batch[name].clone()
            batch[name][1:3] -= 10
            assert (batch[name] - before).tolist() == pytest.approx([0, -10, -10, 0, 0, 0])


def numbers(estimator, batch):
    """The columns it adds, from a batch that has none of them."""
    cfg = config(gamma=0.9, lam=0.8)
    made = compute_advantage(estimator, batch.drop("advantages_N", "returns_N"), cfg)
    return {name: made[name] for name in ("advantages_N", "returns_N") if name in made}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_order_of_sequences_does_not_matter(seed, estimator):
    batch = random_batch(seed)
    order = torch.randperm(batch.S, generator=torch.Generator().manual_seed(seed))
    # groups are renumbered by select in order of their old number: every sequence keeps its peers
    shuffled = numbers(estimator, batch.select(order))
    for name, value in numbers(estimator, batch).items():
        torch.testing.assert_close(shuffled[name], value[batch.token_index(order)])


@pytest.mark.parametrize("fill", [NAN, float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_padding_and_what_stands_in_it_change_no_bit(estimator, fill):
    """Case A2."""
    batch = random_batch(7, poison=0.0)
    wide = padded(batch, fill)
    shown = numbers(estimator, wide)
    for name, value in numbers(estimator, batch).items():
        assert torch.equal(shown[name][wide["mask_N"]], value[batch["mask_N"]])
        assert not shown[name][~wide["mask_N"]].any()


# These compare with all of the batch: they are computed before it is dealt out to ranks.
OF_THE_BATCH = {"gae", "decoupled_gae", "gdpo", "gpg", "reinforce_plus_plus", "reinforce_plus_plus_baseline"}


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_prompts_can_be_dealt_out_before_or_after(estimator, parts):
    batch = random_batch(5, prompts=4).drop("token_reward_N")
    batch["reward_S"][:3] = 1.0  # gpg counts the groups that agree
    for name, whole in numbers(estimator, batch).items():
        apart = torch.full_like(whole, NAN)
        for k in range(parts):
            index_S = (batch.group_S % parts == k).nonzero()[:, 0]
            apart[batch.token_index(index_S)] = numbers(estimator, batch.select(index_S))[name]
        same = torch.allclose(apart, whole, rtol=1e-6, atol=1e-7)
        assert same == (name == "returns_N" or estimator not in OF_THE_BATCH)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("masks", [[], [[0, 0], [0]], [[0, 1], [0]], [[1]], [[], [1, 1]]])
def test_degenerate_batches_stay_finite(estimator, masks):
    batch = batch_of(masks, [0] * len(masks))
    batch.add(reward_S=torch.ones(batch.S), values_N=torch.zeros(batch.N))
    compute_advantage(estimator, complete(batch), config())
    assert batch["advantages_N"].shape == (batch.N,)
    assert torch.isfinite(batch["advantages_N"]).all()
    assert (batch["advantages_N"][~batch["mask_N"]] == 0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_rewards_of_equal_answers_are_no_signal(estimator):
    """0.1 has no exact binary form. Answers alike in all that is read besides, at the value that they earn."""
    batch = batch_of([[0, 1]] * 7, [0, 0, 0, 0, 1, 1, 1], reward_S=[0.1] * 7, values_N=[0.1] * 14)
    batch.add(old_logp_N=torch.full((14,), -0.7), sum_p_sq_N=torch.full((14,), 0.5))
    for t in complete(batch)["trajectory_blob"]:
        t.reward_parts["format"], t.meta["greedy_reward"] = 0.1, float(batch["reward_S"][0])
    advantages_N = numbers(estimator, batch)["advantages_N"]
    assert advantages_N.abs().max() <= 1e-7  # exactly 0 for those that compare within groups: test_algorithms_papers


def test_one_produced_token_has_whitened_advantage_0():
    batch = batch_of([[0, 1]], reward_S=[1.0], values_N=[0.0, 0.25])
    compute_advantage("gae", batch, AlgorithmConfig())
    assert batch["advantages_N"].tolist() == [0.0, 0.0]
    assert batch["returns_N"].tolist() == [0.0, 1.0]


def test_names_and_the_presets_switch():
    batch = batch_of([[1], [1]], [0, 0], reward_S=[1.0, 0.0])
    half = compute_advantage("grpo", batch, AlgorithmConfig(norm_adv_by_std_in_grpo=False))["advantages_N"]
    assert half.tolist() == [0.5, -0.5]
    with pytest.raises(UserError, match="no advantage named 'grpp'"):
        compute_advantage("grpp", batch, AlgorithmConfig())


def test_an_estimator_of_another_package_is_used_by_its_name(monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))

    @catalogue.register("advantage", "sign", doc="sign of the reward")
    def sign(batch, cfg):
        return {"advantages_N": batch["reward_S"].sign()[batch.seq_N] * batch["mask_N"]}

    batch = batch_of([[0, 1], [1, 1]], reward_S=[3.0, -2.0])
    assert compute_advantage("sign", batch, AlgorithmConfig())["advantages_N"].tolist() == [0, 1, -1, -1]
