import math
import statistics

import pytest
import torch
from algorithms_examples import NAN, batch_of, complete, config, random_batch, split
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.algorithms.advantages import (
    compute_advantage,
    gae,
    grpo,
    reinforce_plus_plus,
    rloo,
    sequence_rewards,
    token_rewards,
)
from verl_core.config import catalogue, registry
from verl_core.config.errors import UserError
from verl_core.config.schema import AlgorithmConfig

seeds = st.integers(0, 10_000)
ESTIMATORS = catalogue.names("advantage")


def slow_gae(rewards, values, mask, gamma, lam):
    """One sequence, token by token from the end; value and advantage carried over tokens with mask 0."""
    advantages = [0.0] * len(mask)
    next_value = next_advantage = 0.0
    for t in reversed(range(len(mask))):
        if mask[t]:
            next_advantage = rewards[t] + gamma * next_value - values[t] + gamma * lam * next_advantage
            next_value = values[t]
            advantages[t] = next_advantage
    return advantages


def slow_whiten(rows, masks):
    """(x - mean) / sqrt(variance + 1e-8) over the entries with mask 1; 0 elsewhere."""
    kept = [x for row, mask in zip(rows, masks, strict=True) for x, m in zip(row, mask, strict=True) if m]
    if not kept:
        return rows
    mean = sum(kept) / len(kept)
    var = sum((x - mean) ** 2 for x in kept) / max(len(kept) - 1, 1)
    return [
        [(x - mean) / math.sqrt(var + 1e-8) if m else 0.0 for x, m in zip(row, mask, strict=True)]
        for row, mask in zip(rows, masks, strict=True)
    ]


def flat(rows):
    return torch.tensor([x for row in rows for x in row], dtype=torch.float32)


def broadcast(values, masks):
    return flat([[v if m else 0.0 for m in mask] for v, mask in zip(values, masks, strict=True)])


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (0.5, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("seed", range(8))
def test_gae_is_the_token_loop(seed, gamma, lam):
    batch = random_batch(seed)
    masks, values = split(batch["mask_N"], batch), split(batch["values_N"], batch)
    rewards = split(batch["token_reward_N"], batch)
    slow = [slow_gae(r, v, m, gamma, lam) for r, v, m in zip(rewards, values, masks, strict=True)]
    returns = [
        [a + v if m else 0.0 for a, v, m in zip(*row, strict=True)] for row in zip(slow, values, masks, strict=True)
    ]
    advantages_N, returns_N = gae(batch, batch["token_reward_N"], batch["values_N"], gamma, lam)
    torch.testing.assert_close(advantages_N, flat(slow_whiten(slow, masks)), rtol=1e-5, atol=1e-6)
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
    slow = [
        slow_gae(r, v, [1] * len(r), 0.99, 0.95)
        for r, v in zip(split(reward_N, batch), split(value_N, batch), strict=True)
    ]
    _, returns_N = gae(batch, reward_N, value_N, 0.99, 0.95)
    torch.testing.assert_close(returns_N, flat(slow) + value_N.float(), rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize("norm_by_std", [True, False])
@pytest.mark.parametrize("samples", [2, 5])
def test_grpo_and_rloo_are_the_loops_over_groups(samples, norm_by_std):
    batch = random_batch(samples, prompts=2, samples=samples)
    masks, rewards, groups = split(batch["mask_N"], batch), batch["reward_S"].tolist(), batch.group_S.tolist()
    slow_grpo, slow_rloo = [], []
    for i, group in enumerate(groups):
        peers = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        others = [r for j, (r, g) in enumerate(zip(rewards, groups, strict=True)) if g == group and j != i]
        centred = rewards[i] - statistics.fmean(peers)
        slow_grpo.append(centred / (statistics.stdev(peers) + 1e-6) if norm_by_std else centred)
        slow_rloo.append(rewards[i] - statistics.fmean(others))
    torch.testing.assert_close(grpo(batch, batch["reward_S"], norm_by_std), broadcast(slow_grpo, masks))
    torch.testing.assert_close(rloo(batch, batch["reward_S"]), broadcast(slow_rloo, masks))


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


def test_equal_rewards_give_exactly_no_advantage():
    """0.1 has no exact binary form: a float32 mean of eight is not 0.1, and 1e-9 / 1e-6 would be a large advantage."""
    batch = batch_of([[1]] * 7, [0] * 7)
    for reward in (0.1, -0.7, 1e-3, 12345.678):
        assert grpo(batch, torch.full((7,), reward)).tolist() == [0.0] * 7
        assert rloo(batch, torch.full((7,), reward)).tolist() == [0.0] * 7


def test_nearly_equal_rewards_keep_their_digits():
    step = 2.0**-20  # float32 can tell 1 from 1 + step, but not a mean of such numbers
    reward_S = torch.tensor([1.0, 1.0, 1.0 + step])
    centred = [-step / 3, -step / 3, 2 * step / 3]
    std = math.sqrt(sum(c * c for c in centred) / 2)
    expect = torch.tensor([c / (std + 1e-6) for c in centred])
    torch.testing.assert_close(grpo(batch_of([[1]] * 3, [0] * 3), reward_S), expect, rtol=1e-6, atol=0)


def test_a_group_of_one_has_advantage_0():
    batch = batch_of([[1, 1], [1], [1]], [0, 1, 1])
    reward_S = torch.tensor([5.0, 1.0, 0.0])
    for adv_N in (grpo(batch, reward_S), grpo(batch, reward_S, norm_by_std=False), rloo(batch, reward_S)):
        assert adv_N[:2].tolist() == [0.0, 0.0]
        assert adv_N[2] > 0 > adv_N[3]


@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.0])
def test_reinforce_plus_plus_is_the_token_loop(gamma):
    batch = random_batch(3)
    masks = split(batch["mask_N"], batch)
    returns = []
    for rewards, mask in zip(split(batch["token_reward_N"], batch), masks, strict=True):
        row, running = [0.0] * len(mask), 0.0
        for t in reversed(range(len(mask))):
            if mask[t]:
                running = rewards[t] + gamma * running
                row[t] = running
        returns.append(row)
    advantages_N, returns_N = reinforce_plus_plus(batch, batch["token_reward_N"], gamma)
    torch.testing.assert_close(returns_N, flat(returns), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(advantages_N, flat(slow_whiten(returns, masks)), rtol=1e-5, atol=1e-6)


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


@settings(max_examples=40, deadline=None)
@given(seeds, st.sampled_from(ESTIMATORS), st.randoms())
def test_the_order_of_sequences_does_not_matter(seed, estimator, random):
    batch = random_batch(seed)
    order = list(range(batch.S))
    random.shuffle(order)
    # groups are renumbered by select in order of their old number: every sequence keeps its peers
    shuffled = batch.select(order)
    cfg = config(gamma=0.9, lam=0.8)
    straight_N = compute_advantage(estimator, batch, cfg).select(order)["advantages_N"]
    torch.testing.assert_close(compute_advantage(estimator, shuffled, cfg)["advantages_N"], straight_N)


@settings(max_examples=40, deadline=None)
@given(seeds, st.sampled_from(ESTIMATORS), st.sampled_from([NAN, float("inf"), -float("inf"), 1e30]))
def test_what_lies_under_mask_0_never_shows(seed, estimator, poison):
    clean, poisoned = (random_batch(seed, poison=p).drop("advantages_N", "returns_N") for p in (0.0, poison))
    for batch in (clean, poisoned):
        compute_advantage(estimator, complete(batch), config(gamma=0.9, lam=0.8))
    for name in ("advantages_N", "returns_N"):
        if name in clean:
            assert torch.equal(clean[name], poisoned[name])
            assert (poisoned[name][~poisoned["mask_N"]] == 0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("masks", [[], [[0, 0], [0]], [[0, 1], [0]], [[1]], [[], [1, 1]]])
def test_degenerate_batches_stay_finite(estimator, masks):
    batch = batch_of(masks, [0] * len(masks))
    batch.add(reward_S=torch.ones(batch.S), values_N=torch.zeros(batch.N))
    compute_advantage(estimator, complete(batch), config())
    assert batch["advantages_N"].shape == (batch.N,)
    assert torch.isfinite(batch["advantages_N"]).all()
    assert (batch["advantages_N"][~batch["mask_N"]] == 0).all()


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
