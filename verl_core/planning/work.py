"""How much a step has to do: sequences, their longest length, and how a rank's share is cut into micro-batches."""

import math
from dataclasses import dataclass

from verl_core.config.catalogue import entry
from verl_core.config.effective import answers_a_row
from verl_core.config.preferences import compares_pairs
from verl_core.config.schema import RlxConfig


@dataclass(frozen=True)
class Work:
    """A step of an effective configuration, every sequence at its longest: plans are upper bounds."""

    prompts: int
    samples: int
    """Sequences a row of the batch becomes."""
    prompt: int
    response: int
    shares: bool = False
    """Whether the answers of a prompt share its forward in a micro-batch."""
    least: int = 1
    """Sequences that a micro-batch holds in any case: both of a pair, for a loss that compares them."""

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

    def row(self, sequences: int) -> int:
        """Tokens of so many sequences in a micro-batch. Groups that share lie one after the other, the first and the
        last cut anywhere."""
        prompts = min(sequences, (sequences - 2) // self.samples + 2) if self.shares else sequences
        return prompts * self.prompt + sequences * self.response

    def fitting(self, tokens: int) -> int:
        """Sequences that a budget of tokens holds. Groups that share are cut where a micro-batch ends."""
        if not self.shares:
            return tokens // self.length
        group = self.prompt + self.samples * self.response
        return tokens // group * self.samples + max(0, tokens % group - self.prompt) // self.response


@dataclass(frozen=True)
class Micro:
    """One forward of a rank that holds its sequences whole; context and sequence parallelism divide it further."""

    tokens: int
    answers: int
    """Tokens whose log-probs or values are wanted."""
    count: int
    """Forwards that a rank's share takes."""


def work_of(c: RlxConfig) -> Work:
    samples = answers_a_row(c)
    shares = c.actor.share_prompt and samples > 1
    least = 2 if compares_pairs(c) or "value_head" in entry("algorithm", c.algorithm.name).needs else 1
    return Work(c.data.train_batch_size, samples, c.data.max_prompt_length, c.data.max_response_length, shares, least)


def cut(work: Work, share: int, sequences: int | None, budget: int | None, split: int = 1) -> Micro:
    """Micro-batches of a share of `share` sequences, by a count of sequences or a budget of tokens on each GPU; `split`
    GPUs work on the same sequences, so that a group of them takes `split` times as much at once."""
    share = max(1, share)
    at_once = sequences * split if sequences is not None else work.fitting((budget or work.length) * split)
    at_once = min(max(work.least, at_once), share)
    answers = at_once * work.response
    tokens = work.row(at_once)
    if sequences is None and budget is not None:  # prompts may be short: nearly all of a full micro-batch is answers
        whole = work.row(work.least) if work.least > 1 else 0  # what must not be cut may be larger than the budget
        answers = min(share * work.response, max(budget * split, whole))
        tokens = min(tokens, max(budget * split, whole, work.length))
    return Micro(tokens, answers, math.ceil(share / at_once))
