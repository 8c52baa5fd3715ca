"""The part `reward_model`: a frozen model with one output reads the conversation up to the answer's end."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence

from verl_core.rewards.models.conversations import Conversations, Unscorable
from verl_core.rewards.verdict import ScoreRequest, Verdict, failed


class RewardModel:
    """Scores answers by what `outputs` says of their conversations; one that cannot be read has failed.

    Args:
        outputs: the model's output at the last token of each sequence of ids, in order.
    """

    def __init__(self, conversations: Conversations, outputs: Callable[[list[list[int]]], Awaitable[list[float]]]):
        self._conversations, self._outputs = conversations, outputs

    def check(self, data_sources: Iterable[str]) -> None:
        """Any row can be scored."""

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Verdict]:
        """One verdict a request, in order."""
        # Not in a thread: which answers travel together, and so how sums are rounded, would hang on who is first.
        encoded = self._conversations.encode(requests)
        readable = [ids for ids in encoded if not isinstance(ids, Unscorable)]
        outputs = iter(await self._outputs(readable) if readable else [])
        return [failed(str(ids)) if isinstance(ids, Unscorable) else _verdict(next(outputs)) for ids in encoded]

    def close(self) -> None:
        """Its ranks are the run's."""


def _verdict(output: float) -> Verdict:
    if not math.isfinite(output):
        return failed(f"the reward model's output is {output}")
    return Verdict(reward=output)
