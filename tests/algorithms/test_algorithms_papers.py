"""Every advantage estimator against its paper's formula in plain Python, and worked by hand."""

import math

import pytest
import reference_advantages as paper
import torch
from algorithms_examples import KEYS, batch_of, complete, config, random_batch, split

from verl_core.algorithms.advantages import compute_advantage, sequence_rewards
from verl_core.algorithms.advantages.optimal_token import optimal_token_baseline
from verl_core.algorithms.correction import importance_weights
from verl_core.algorithms.produced import produced
from verl_core.config import catalogue
from verl_core.config.errors import RunError
from verl_core.config.rollout_correction import RolloutCorrectionConfig, weights_of

GAMMA, LAM, LAM_CRITIC, ALPHA = 0.9, 0.8, 0.97, 0.4


class Rows:
    """A batch as lists, one a sequence."""

    def __init__(self, batch):
        self.masks = split(batch["mask_N"], batch)
        self.groups = batch.group_S.tolist()
        self.rewards = sequence_rewards(batch).tolist()
        rows = batch["trajectory_blob"]
        self.parts = [[t.reward for t in rows], [t.reward_parts[KEYS[1]] for t in rows]]
        self.greedy = [t.meta["greedy_reward"] for t in rows]
        for name in ("token_reward", "values", "old_logp", "sum_p_sq"):
            setattr(self, name, split(batch[f"{name}_N"], batch))

    def each(self, numbers):
        return paper.spread(numbers, self.masks)

    def gae(self, lams, lam_critic):
        advantages, returns = paper.gae(self.token_reward, self.values, self.masks, GAMMA, lams, lam_critic)
        return paper.whiten(advantages, self.masks), returns

    def returns(self, gamma=1.0):
        return paper.returns_of(self.token_reward, self.masks, gamma)

    def otb(self, turns, weights=None):
        return paper.optimal_token_baseline(
            self.token_reward, self.masks, self.groups, self.old_logp, self.sum_p_sq, turns, weights
        )

    def remax(self):
        return [
            [(x - b) if m else 0.0 for x, m in zip(row, mask, strict=True)]
            for row, mask, b in zip(self.returns(), self.masks, self.greedy, strict=True)
        ]


EXPECTED = {
    "gae": lambda r: r.gae([LAM] * len(r.masks), LAM)[0],
    "decoupled_gae": lambda r: r.gae(paper.adaptive_lams(r.masks, ALPHA), LAM_CRITIC)[0],
    "grpo": lambda r: r.each(paper.grpo(r.rewards, r.groups)),
    "grpo_passk": lambda r: r.each(paper.grpo_passk(r.rewards, r.groups)),
    "gdpo": lambda r: paper.gdpo(r.parts, [1.0, 0.5], r.groups, r.masks),
    "rloo": lambda r: r.each(paper.rloo(r.rewards, r.groups)),
    "opo": lambda r: r.each(paper.opo(r.rewards, r.groups, r.masks)),
    "gpg": lambda r: r.each(paper.gpg(r.rewards, r.groups)),
    "reinforce_plus_plus": lambda r: paper.whiten(r.returns(GAMMA), r.masks),
    "reinforce_plus_plus_baseline": lambda r: paper.whiten(r.each(paper.grpo(r.rewards, r.groups, False)), r.masks),
    "remax": Rows.remax,
    "optimal_token_baseline": lambda r: r.otb(turns=False),
    "tir_optimal_token_baseline": lambda r: r.otb(turns=True),
}
RETURNS = {
    "gae": lambda r: r.gae([LAM] * len(r.masks), LAM)[1],
    "decoupled_gae": lambda r: r.gae([0.0] * len(r.masks), LAM_CRITIC)[1],
    "reinforce_plus_plus": lambda r: r.returns(GAMMA),
    "remax": Rows.returns,
    "optimal_token_baseline": Rows.returns,
    "tir_optimal_token_baseline": Rows.returns,
}


def test_every_estimator_has_its_formula_here():
    assert set(EXPECTED) == set(catalogue.names("advantage", built=True))


def computed(name, batch, **keys):
    cfg = config(gamma=GAMMA, lam=LAM, lam_critic=LAM_CRITIC, lam_alpha=ALPHA, **keys)
    return compute_advantage(name, batch.drop("advantages_N", "returns_N"), cfg)


def same(column_N, rows):
    flat = torch.tensor([x for row in rows for x in row], dtype=torch.float32)
    torch.testing.assert_close(column_N, flat, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", EXPECTED)
def test_an_estimator_is_its_papers_formula(name, seed):
    batch = random_batch(seed, prompts=3, samples=2 + seed % 3)
    out, rows = computed(name, batch), Rows(batch)
    same(out["advantages_N"], EXPECTED[name](rows))
    assert ("returns_N" in out) == (name in RETURNS)
    if name in RETURNS:
        same(out["returns_N"], RETURNS[name](rows))


@pytest.mark.parametrize("name", ["grpo", "grpo_passk"])
def test_without_the_standard_deviation(name):
    batch = random_batch(11)
    rows, formula = Rows(batch), getattr(paper, name)
    out = computed(name, batch, norm_adv_by_std_in_grpo=False)
    same(out["advantages_N"], rows.each(formula(rows.rewards, rows.groups, False)))


@pytest.mark.parametrize("alpha", [None, 0.05, 0.4])
def test_decoupled_gae_with_and_without_the_length(alpha):
    batch = random_batch(5)
    rows = Rows(batch)
    lams = [LAM] * batch.S if alpha is None else paper.adaptive_lams(rows.masks, alpha)
    cfg = config(gamma=GAMMA, lam=LAM, lam_critic=LAM_CRITIC, lam_alpha=alpha)
    out = compute_advantage("decoupled_gae", batch, cfg)
    advantages, returns = rows.gae(lams, LAM_CRITIC)
    same(out["advantages_N"], advantages)
    same(out["returns_N"], returns)


# One token an answer. Rewards of two prompts; lengths only where a formula reads them.
HAND = {
    "grpo_passk": ([3.0, 1.0, 2.0, 5.0, 5.0], [0, 0, 0, 1, 1], [1 / (1 + 1e-6), 0, 0, 0, 0]),
    "gpg": ([1.0, 0.0, 0.0, 2.0, 2.0, 2.0], [0, 0, 0, 1, 1, 1], [4 / 3, -2 / 3, -2 / 3, 0, 0, 0]),
    "rloo": ([1.0, 0.0, 0.0, 4.0], [0, 0, 0, 1], [1.0, -0.5, -0.5, 0]),
}


@pytest.mark.parametrize("name", HAND)
def test_by_hand(name):
    rewards, groups, expect = HAND[name]
    batch = complete(batch_of([[1]] * len(rewards), groups, reward_S=rewards))
    out = compute_advantage(name, batch, config())["advantages_N"]
    torch.testing.assert_close(out, torch.tensor(expect, dtype=torch.float32))


def test_opo_by_hand():
    """Three tokens of reward 1 and one of reward 0: the baseline is 3/4, not 1/2."""
    batch = batch_of([[0, 1, 1, 1], [0, 1]], [0, 0], reward_S=[1.0, 0.0])
    out = compute_advantage("opo", batch, config())["advantages_N"]
    assert out.tolist() == [0, 0.25, 0.25, 0.25, 0, -0.75]


def test_gdpo_by_hand():
    """Two rewards that disagree: summed they are equal and GRPO learns nothing; apart they are 1/sqrt2 each way."""
    batch = complete(batch_of([[1], [1]], [0, 0], reward_S=[1.0, 0.0]))
    for t, part in zip(batch["trajectory_blob"], (0.0, 1.0), strict=True):
        t.reward_parts["format"] = part
    cfg = config()
    cfg.gdpo_reward_weights = [3.0, 1.0]
    out = compute_advantage("gdpo", batch, cfg)["advantages_N"]
    # 3 a - a = 2 a and -2 a with a = 0.7071: whitened, -+ half the distance over the standard deviation
    torch.testing.assert_close(out, torch.tensor([0.5**0.5, -(0.5**0.5)]), rtol=1e-5, atol=1e-6)
    cfg.gdpo_reward_weights = None
    assert compute_advantage("gdpo", batch, cfg)["advantages_N"].tolist() == [0, 0]


def test_gdpo_names_a_reward_that_is_not_there():
    batch = complete(batch_of([[1], [1]], [0, 0], reward_S=[1.0, 0.0]))
    cfg = config()
    cfg.gdpo_reward_keys = ["score", "style"]
    with pytest.raises(RunError, match="names 'style'") as error:
        compute_advantage("gdpo", batch, cfg)
    assert error.value.hint == "it returned format, score"
    for t in batch["trajectory_blob"]:  # what could not be scored has 0 of everything
        t.meta["score_error"] = "timeout: 10 s"
    assert compute_advantage("gdpo", batch, cfg)["advantages_N"].isfinite().all()


def test_reinforce_plus_plus_baseline_by_hand():
    """Centred .5 .5 -.5 (two tokens, one token): mean 1/6, variance 1/3."""
    batch = batch_of([[1, 1], [1]], [0, 0], reward_S=[1.0, 0.0])
    out = compute_advantage("reinforce_plus_plus_baseline", batch, config())["advantages_N"]
    unit = math.sqrt(3)
    torch.testing.assert_close(out, torch.tensor([unit / 3, unit / 3, -2 * unit / 3]), rtol=1e-5, atol=1e-6)


def test_remax_by_hand():
    batch = complete(batch_of([[0, 1, 1], [1]], [0, 0], reward_S=[1.0, 0.25]))
    for t in batch["trajectory_blob"]:
        t.meta["greedy_reward"] = 0.5
    out = compute_advantage("remax", batch, config())
    assert out["advantages_N"].tolist() == [0, 0.5, 0.5, -0.25]
    assert out["returns_N"].tolist() == [0, 1, 1, 0.25]


def test_length_adaptive_gae_by_hand():
    """alpha l = 0.5 * 4 = 2: lambda 1/2; one token: 0.5 * 1 < 1, lambda 0. Values 0, reward at the end."""
    batch = complete(batch_of([[1] * 4, [1]], [0, 1], reward_S=[1.0, 1.0], values_N=[0.0] * 5))
    out = compute_advantage("decoupled_gae", batch, config(lam_alpha=0.5))
    raw = [0.125, 0.25, 0.5, 1.0, 1.0]
    same(out["advantages_N"], paper.whiten([raw], [[1] * 5]))
    assert out["returns_N"].tolist() == [1.0] * 5  # the critic's lambda is 1


def test_optimal_token_baseline_by_hand():
    """Energies: 1 - 2/2 + 1/2 = .5 and 1 - 2 + 1 = 0 each; the second answer's is 1 - 0 + .5 = 1.5."""
    batch = batch_of([[1, 1], [1]], [0, 0], reward_S=[1.0, 0.0])
    logp_N, square_N = torch.tensor([math.log(0.5), 0.0, -math.inf]), torch.tensor([0.5, 1.0, 0.5])
    out, returns = optimal_token_baseline(batch, torch.tensor([0.0, 1.0, 0.0]), logp_N, square_N)
    # place 0: (1 * .5 + 0 * 1.5) / 2; place 1 has the first answer alone: no baseline
    torch.testing.assert_close(out, torch.tensor([0.75, 1.0, -0.25]))
    assert returns.tolist() == [1, 1, 0]


def test_turns_count_produced_tokens_and_plain_places_count_tool_text():
    masks, groups = [[0, 1, 0, 0, 1], [0, 1, 1]], [0, 0]
    batch = complete(batch_of(masks, groups, reward_S=[1.0, 0.0]), seed=3)
    plain = compute_advantage("optimal_token_baseline", batch, config())["advantages_N"].clone()
    turns = compute_advantage("tir_optimal_token_baseline", batch, config())["advantages_N"]
    assert plain[4] == 1.0 and plain[7] == 0.0  # nobody else stands there
    assert turns[4] != 1.0 and turns[7] != 0.0  # both are the second token of their answer
    assert plain[1] == turns[1]


def test_importance_weights_of_the_rollout_enter_the_energy_squared():
    batch = random_batch(2)
    correction = RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=1.5)
    at = produced(batch)
    ratio_M = at.pick(batch["old_logp_N"]).double() - at.pick(batch["rollout_logp_N"]).double()
    weight_M, _ = importance_weights(ratio_M, at, weights_of(correction))
    weights = split(at.spread(weight_M, batch.N), batch)
    out = computed("optimal_token_baseline", batch, rollout_correction=correction)
    same(out["advantages_N"], Rows(batch).otb(turns=False, weights=weights))
    assert not torch.allclose(out["advantages_N"], computed("optimal_token_baseline", batch)["advantages_N"])


GROUPED = [name for name in catalogue.names("advantage") if "group" in catalogue.entry("advantage", name).needs]


@pytest.mark.parametrize("name", sorted(set(GROUPED) - {"optimal_token_baseline", "tir_optimal_token_baseline"}))
@pytest.mark.parametrize("reward", [0.1, -0.7, 12345.678])
def test_equal_rewards_are_exactly_no_signal(name, reward):
    batch = complete(batch_of([[1] * n for n in (1, 2, 3, 1, 1, 2, 1)], [0] * 7, reward_S=[reward] * 7))
    for t in batch["trajectory_blob"]:
        t.reward_parts["format"] = reward
    assert not compute_advantage(name, batch, config())["advantages_N"].any()


@pytest.mark.parametrize("name", sorted(set(GROUPED) - {"optimal_token_baseline", "tir_optimal_token_baseline"}))
def test_equal_answers_with_a_kl_in_the_reward_are_exactly_no_signal(name):
    """Sums of token rewards fill a float64, so that seven of them over seven are not one of them. The other group's
    answers differ; gpg makes up for the seven that do not."""
    batch = complete(batch_of([[1] * 3] * 9, [0] * 7 + [1] * 2, reward_S=[1.0] * 9))
    batch.add(token_reward_N=torch.tensor([-4e-9, -1e-5, 1.0] * 8 + [0.0] * 3))
    for t in batch["trajectory_blob"]:
        t.reward_parts["format"] = 0.0
    out = compute_advantage(name, batch, config(norm_adv_by_std_in_grpo=False))["advantages_N"]
    assert not out[:21].any()
    if name == "gpg":
        assert out[21:].tolist() == pytest.approx([9 / 2 / 2] * 3 + [-9 / 2 / 2] * 3, rel=2e-5)


@pytest.mark.parametrize("name", EXPECTED)
def test_nearly_equal_rewards_keep_their_digits(name):
    """1.00000 and 1.00001 differ by 168 steps of float32; a float32 mean would lose a good part of them."""
    batch = complete(batch_of([[1], [1, 1], [1]], [0, 0, 0], reward_S=[1.0, 1.00001, 1.0]))
    batch.add(token_reward_N=torch.tensor([1.0, 0.0, 1.00001, 1.0]), values_N=torch.zeros(4))
    for t in batch["trajectory_blob"]:
        t.reward_parts["format"] = 0.0
    out = computed(name, batch)["advantages_N"]
    expect = torch.tensor([x for row in EXPECTED[name](Rows(batch)) for x in row], dtype=torch.float32)
    torch.testing.assert_close(out, expect, rtol=1e-6, atol=0)
    assert out.any()
