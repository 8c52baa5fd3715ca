"""The preference loss that a training engine is handed: its share of the mini-batch loss, and what is logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from verl_core.algorithms.loss import Metric, Need, Totals, mean_of
from verl_core.algorithms.preference import Answers, Options, PreferenceLossFn
from verl_core.algorithms.produced import produced
from verl_core.batch import Batch
from verl_core.config import catalogue
from verl_core.config.effective import settled
from verl_core.config.schema import PreferenceConfig


@dataclass(frozen=True)
class PreferenceLoss:
    """Mean over the mini-batch's pairs, or answers, of a loss of the catalogue's kind `preference_loss`.

    Reads mask_N, win_S and, for a loss with a reference, ref_logp_N. Logs actor/rewards/*: an answer's implicit reward
    is beta times its log-ratio to the reference (without one: its mean log-prob a token), and `accuracy` the share of
    pairs, or answers, that the policy orders as they were judged.
    """

    name: str
    options: Options = field(default_factory=Options)
    temperature: float = 1.0
    needs: frozenset[Need] = frozenset({Need.LOGP})

    @classmethod
    def from_config(cls, cfg: PreferenceConfig, temperature: float = 1.0) -> PreferenceLoss:
        """From an effective configuration's algorithm.preference. Raises UserError for an unknown loss."""
        name = settled(cfg.loss)
        catalogue.entry("preference_loss", name)  # refused here rather than on the ranks
        options = Options(
            beta=1.0 if cfg.beta is None else cfg.beta,
            label_smoothing=cfg.label_smoothing,
            simpo_gamma=cfg.simpo_gamma,
            orpo_weight=cfg.orpo_weight,
            desirable_weight=cfg.desirable_weight,
            undesirable_weight=cfg.undesirable_weight,
            sppo_eta=cfg.sppo_eta,
        )
        return cls(name, options, temperature)

    @property
    def whole_groups(self) -> bool:
        return "pairs" in catalogue.entry("preference_loss", self.name).needs

    @property
    def has_reference(self) -> bool:
        return "reference" in catalogue.entry("preference_loss", self.name).needs

    def __call__(self, out: Mapping[Need, Tensor], batch: Batch, totals: Totals) -> tuple[Tensor, dict[str, Metric]]:
        answers = Answers.of(batch, produced(batch), out[Need.LOGP], self.whole_groups)
        loss_of: PreferenceLossFn = catalogue.implementation("preference_loss", self.name)
        loss_X, margin_X = loss_of(answers, self.options)
        loss = loss_X.sum() / max(totals.groups if self.whole_groups else totals.sequences, 1)
        reward_S = self.options.beta * (answers.ratio_S if self.has_reference else answers.mean_logp_S)
        return loss, {
            "actor/rewards/chosen": mean_of(reward_S[answers.win_S > 0.5]),
            "actor/rewards/rejected": mean_of(reward_S[answers.win_S < 0.5]),
            "actor/rewards/margin": mean_of(margin_X),
            "actor/rewards/accuracy": mean_of((margin_X > 0).float()),
        }
