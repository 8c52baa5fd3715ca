"""Flows: what an algorithm makes of a batch, between scored answers (or examples of a data set) and new weights.

`base.py` has what all share: optimizer steps on mini-batches, reference log-probs, the state that a checkpoint keeps.
`policy.py`: advantage and policy loss (PPO, GRPO and all that differ from them in a function). `supervised.py` and
`reward_model.py` learn from the answers of a data set. The others are one family each, by their name. An algorithm's
entry in the catalogue names its flow; `trainer.py` runs every one of them in the same loop.
"""

from verl_core.controller.flows.base import Flow, schedule_span
from verl_core.controller.flows.policy import PolicyFlow

__all__ = ["Flow", "PolicyFlow", "schedule_span"]
