"""What each way of normalising does to one table of rewards, worked by hand: two prompts, four answers each."""

import pytest
import torch
from algorithms_examples import batch_of, complete

from verl_core.algorithms.advantages import compute_advantage
from verl_core.config import catalogue
from verl_core.config.compose import resolve
from verl_core.config.effective import effective

REWARDS = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 2.0, 5.0]
VALUES = [0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]  # the critic's, read by gae

# Row means 1/2 and 2; row variances (unbiased) 1/3 and 14/3, standard deviations 0.577350 and 2.160247.
BY_ROW = [0.866025, -0.866025, -0.866025, 0.866025, -0.925820, -0.462910, 0.0, 1.388730]
CENTRED = [0.5, -0.5, -0.5, 0.5, -2.0, -1.0, 0.0, 3.0]
# 4/3 of the centred reward: reward less the mean of the other three.
LEAVE_ONE_OUT = [2 / 3, -2 / 3, -2 / 3, 2 / 3, -8 / 3, -4 / 3, 0.0, 4.0]
# The whole table: mean 10/8, variance 19.5/7, standard deviation 1.669046.
BY_BATCH = [-0.149786, -0.748931, -0.748931, -0.149786, -0.748931, -0.149786, 0.449359, 2.246794]
# Reward less value: mean 7/8, variance 13.375/7, standard deviation 1.382286.
OF_THE_CRITIC = [-0.271290, -0.994729, -0.633009, 0.090430, -0.633009, 0.090430, 0.090430, 2.260748]
# The centred table: mean 0, variance 15/7, standard deviation 1.463850.
CENTRED_BY_BATCH = [0.341565, -0.341565, -0.341565, 0.341565, -1.366260, -0.683130, 0.0, 2.049390]
# The rows above: sum of squares 6, mean 0, standard deviation sqrt(6/7) = 0.925820.
ONE_KEY = [0.935414, -0.935414, -0.935414, 0.935414, -1.0, -0.5, 0.0, 1.5]
OF_THE_GREEDY = [0.75, -0.25, -0.25, 0.75, -0.25, 0.75, 1.75, 4.75]  # less 1/4

TABLE = {
    "grpo": (["algorithm.name=grpo"], BY_ROW),
    "grpo, true": (["algorithm.name=grpo", "algorithm.norm_adv_by_std_in_grpo=true"], BY_ROW),
    "grpo, false": (["algorithm.name=grpo", "algorithm.norm_adv_by_std_in_grpo=false"], CENTRED),
    "dr_grpo": (["algorithm.name=dr_grpo"], CENTRED),
    "dr_grpo, true": (["algorithm.name=dr_grpo", "algorithm.norm_adv_by_std_in_grpo=true"], BY_ROW),
    "dapo": (["algorithm.name=dapo"], BY_ROW),
    "rloo": (["algorithm.name=rloo"], LEAVE_ONE_OUT),
    "reinforce_plus_plus": (["algorithm.name=reinforce_plus_plus"], BY_BATCH),
    "reinforce_plus_plus_baseline": (["algorithm.name=reinforce_plus_plus_baseline"], CENTRED_BY_BATCH),
    "grpo_passk": (
        ["algorithm.name=grpo_passk", "algorithm.norm_adv_by_std_in_grpo=false"],
        [0.0, 0, 0, 0, 0, 0, 0, 3],
    ),
    "opo": (["algorithm.name=opo"], CENTRED),  # answers of one length
    "gpg": (["algorithm.name=gpg"], CENTRED),  # both groups differ
    "gdpo": (["algorithm.name=gdpo", "algorithm.gdpo_reward_keys=[score]"], ONE_KEY),
    "remax": (["algorithm.name=remax"], OF_THE_GREEDY),
    "optimal_token_baseline": (["algorithm.name=optimal_token_baseline"], CENTRED),  # all gradients alike
    "tir_optimal_token_baseline": (["algorithm.name=tir_optimal_token_baseline"], CENTRED),
    "decoupled_gae": (["algorithm.name=vapo"], OF_THE_CRITIC),  # one token: lambda has nothing to weigh
    "pf_ppo": (["algorithm.name=pf_ppo"], OF_THE_CRITIC),
    "ppo": (["algorithm.name=ppo"], OF_THE_CRITIC),
    "ppo with grpo's advantage": (["algorithm.name=ppo", "algorithm.adv_estimator=grpo"], BY_ROW),
}


@pytest.mark.parametrize("row", TABLE)
def test_each_normalisation_on_one_table(row):
    words, expected = TABLE[row]
    algorithm = effective(resolve("smoke", words).config).algorithm
    batch = batch_of([[0, 1]] * 8, [0] * 4 + [1] * 4, reward_S=REWARDS)
    batch.add(old_logp_N=torch.zeros(16) - 0.5, sum_p_sq_N=torch.zeros(16) + 0.5)
    for t in complete(batch)["trajectory_blob"]:
        t.meta["greedy_reward"] = 0.25
    batch.add(values_N=torch.tensor([v for value in VALUES for v in (9.0, value)]))
    advantages_N = compute_advantage(algorithm.adv_estimator, batch, algorithm)["advantages_N"]
    torch.testing.assert_close(advantages_N.reshape(8, 2)[:, 1], torch.tensor(expected), atol=3e-6, rtol=0)


def test_the_table_has_every_estimator():
    used = {effective(resolve("smoke", words).config).algorithm.adv_estimator for words, _ in TABLE.values()}
    assert used == set(catalogue.names("advantage"))
