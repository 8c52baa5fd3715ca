"""What learning from the answers of a data set asks of other keys."""

from collections.abc import Iterator

from verl_core.config.effective import get, learner, token_split
from verl_core.config.key_checks import Said
from verl_core.config.schema import RlxConfig


def reward_model_faults(said: Said, e: RlxConfig) -> Iterator[str]:
    """Of an effective configuration, where it trains a reward model."""
    if learner(e) != "reward_model":
        return
    if e.model.lora_rank:
        yield f"{said('model.lora_rank')}: {said('algorithm.name')} trains its model whole; set it to 0"
    budget = "actor.ppo_max_token_len_per_gpu"
    longest = e.data.max_prompt_length + e.data.max_response_length
    if get(e, budget) is not None and get(e, budget) * token_split(e.actor) == longest:
        yield f"{said(budget)}: a reward is read off one token behind the longest sequence; set {longest + 1} or more"
