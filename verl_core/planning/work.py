"""How much a step has to do: sequences, their longest length, and how a rank's share is cut into micro-batches."""

import math
from dataclasses import dataclass

from verl_core.config.effective import uses_rollout
from verl_core.config.schema import RlxConfig

PAIRS = frozenset({"dpo", "reward_model"})  # a row of the batch is two sequences


@dataclass(frozen=True)
class Work:
    """A step of an effective configuration, every sequence at its longest: plans are upper bounds."""

    prompts: int
    samples: int
    """Sequences a row of the batch becomes."""
    prompt: int
    response: int

    @property
    def length(self) -> int:
        return self.prompt + self.response

    @property
    def sequences(self) -> int:
        return self.prompts * self.samples

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    @property
    def answers(self) -> int:
        """Tokens whose log-probs are wanted."""
        return self.sequences * self.response


@dataclass(frozen=True)
class Micro:
    """One forward of a rank that holds its sequences whole; context and sequence parallelism divide it further."""

    tokens: int
    answers: int
    """Tokens whose log-probs or values are wanted."""
    count: int
    """Forwards that a rank's share takes."""


def work_of(c: RlxConfig) -> Work:
    samples = c.rollout.n if uses_rollout(c) else 2 if c.algorithm.name in PAIRS else 1
    return Work(c.data.train_batch_size, samples, c.data.max_prompt_length, c.data.max_response_length)


def cut(work: Work, share: int, sequences: int | None, budget: int | None, split: int = 1) -> Micro:
    """Micro-batches of a share of `share` sequences, by a count of sequences or a budget of tokens on each GPU; `split`
    GPUs work on the same sequences, so that a group of them takes `split` times as much at once."""
    share = max(1, share)
    at_once = sequences * split if sequences is not None else (budget or work.length) * split // work.length
    at_once = min(max(1, at_once), share)
    answers = at_once * work.response
    if sequences is None and budget is not None:  # prompts may be short: nearly all of a full micro-batch is answers
        answers = min(share * work.response, budget * split)
    return Micro(at_once * work.length, answers, math.ceil(share / at_once))
