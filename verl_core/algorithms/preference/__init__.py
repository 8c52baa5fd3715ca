"""Preference losses: functions from the log-probs of whole answers to one loss a pair, or one an answer. The catalogue
holds them by name; a plug-in adds its own with `register("preference_loss", NAME)`.

`pairs.py`: a chosen answer against a rejected one (DPO, IPO, SLiC's hinge, SimPO, ORPO). `answers.py`: each answer by
itself (KTO, SPPO). `groups.py`: which answers of a rolled-out group are compared, and how often each one wins.
`mismatched.py`: other prompts' answers, for KTO's baseline. `loss.py`: the loss that a training engine is handed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from verl_core.algorithms.produced import Produced
from verl_core.batch import Batch


@dataclass(frozen=True)
class Options:
    """The numbers of the preference losses, from `algorithm.preference`; each loss reads its own."""

    beta: float = 0.1
    label_smoothing: float = 0.0
    simpo_gamma: float = 0.5
    orpo_weight: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    sppo_eta: float = 1.0
    kl_baseline: float = 0.0  # KTO's z0, nats an answer; worked out for a whole batch before its optimizer steps


@dataclass(frozen=True)
class Answers:
    """What a preference loss sees: the answers of a micro-batch. Of a loss that compares, whole groups of which at
    least one answer has a produced token; of another one, answers that have one."""

    logp_S: Tensor  # sum over the produced tokens under the policy that learns, with gradient
    ref_logp_S: Tensor | None  # the same under the reference; None for a loss that has none
    tokens_S: Tensor  # produced tokens
    win_S: Tensor  # how often the answer is preferred, in [0, 1]: of a pair 1 and 0
    group_S: Tensor

    @classmethod
    def of(cls, batch: Batch, at: Produced, logp_N: Tensor, whole_groups: bool) -> Answers:
        """From a batch with win_S and, for a loss that has a reference, ref_logp_N."""
        here = at.count_S > 0
        if whole_groups:
            here = torch.bincount(batch.group_S[here], minlength=batch.P)[batch.group_S] > 0
        sums = lambda value_N: at.per_sequence(at.pick(value_N))[here]  # noqa: E731
        ref_logp_S = sums(batch["ref_logp_N"]) if "ref_logp_N" in batch else None
        return cls(sums(logp_N), ref_logp_S, at.count_S[here], batch["win_S"][here], batch.group_S[here])

    @property
    def ratio_S(self) -> Tensor:
        """log policy(answer) - log reference(answer), nats."""
        assert self.ref_logp_S is not None
        return self.logp_S - self.ref_logp_S

    @property
    def mean_logp_S(self) -> Tensor:
        """Log-prob of a token, mean over the answer; 0 for an answer without tokens."""
        return self.logp_S / self.tokens_S.clamp(min=1)

    @property
    def chosen_S(self) -> Tensor:
        return self.win_S > 0.5

    def gap(self, value_S: Tensor) -> Tensor:
        """Chosen less rejected, one number a pair [G]. Raises ValueError for a group that is not a pair."""
        chosen_S = self.chosen_S
        _, pair_S = self.group_S.unique(return_inverse=True)
        pairs = int(pair_S.max()) + 1 if len(pair_S) else 0
        two = [torch.bincount(pair_S[side_S], minlength=pairs) for side_S in (chosen_S, ~chosen_S)]
        if not all(bool((count_G == 1).all()) for count_G in two):
            raise ValueError("a preference pair is a group of two answers, one chosen and one rejected")
        zero_G = value_S.new_zeros(pairs)
        return zero_G.index_add(0, pair_S, torch.where(chosen_S, value_S, -value_S))


PreferenceLossFn = Callable[[Answers, Options], tuple[Tensor, Tensor]]
"""-> (loss, margin), both one number a pair [G] or an answer [S]; the loss is well met where the margin is above 0."""
