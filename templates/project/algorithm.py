"""An algorithm of this project: `rlx train algorithm.module=algorithm.py algorithm.name=mine`.

Here: REINFORCE with the median reward of a prompt's answers as its baseline. docs/algorithms.md says what else there is
to change: policy losses are registered the same way.
"""

from verl_core.algorithms.advantages import sequence_rewards
from verl_core.config.catalogue import register


@register("advantage", "above_median", needs=("group",), doc="Reward less the median of the prompt's answers.")
def above_median(batch, config):
    """Advantages, one number a token. batch: rewards [S], groups [S], tokens [N]; config: the keys below algorithm."""
    reward_S = sequence_rewards(batch)
    advantage_S = reward_S.clone()
    for group in range(batch.P):
        own_S = batch.group_S == group
        advantage_S[own_S] -= reward_S[own_S].quantile(0.5)
    return {"advantages_N": advantage_S[batch.seq_N] * batch["mask_N"]}


register("algorithm", "mine", options={"algorithm.adv_estimator": "above_median"}, doc="Policy gradient with a median.")
