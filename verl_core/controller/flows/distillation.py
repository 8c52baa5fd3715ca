"""On-policy distillation: answers of the student, and what teachers make of each of their tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from verl_core.algorithms.distillation import DistillationLoss, distilled_advantage, teacher_metrics
from verl_core.algorithms.loss import Need
from verl_core.batch import Batch
from verl_core.config.errors import UserError
from verl_core.config.model_roles import model_of, teachers
from verl_core.config.schema import RlxConfig
from verl_core.config.schema_distillation import FORWARD_TOPK
from verl_core.controller.flows.base import LOGP
from verl_core.controller.flows.policy import Pass, PolicyFlow
from verl_core.controller.roles import Role
from verl_core.models.tokenizer import load_tokenizer
from verl_core.tracking.timing import Timer
from verl_core.training.protocol import MicroBatching

TOPK = frozenset({Need.TOPK_IDS, Need.TOPK_LOGP})


class DistillationFlow(PolicyFlow):
    """The policy flow with teachers: what they say enters as advantages or as a term of the loss."""

    def __init__(self, config: RlxConfig, roles: Mapping[str, Role]):
        super().__init__(config, roles)
        self.how = config.distillation
        self.topk = self.how.loss_mode == FORWARD_TOPK
        self.teachers = {roles[role]: teacher.key for role, teacher in teachers(config).items()}
        if not self.how.use_policy_gradient:
            self.policy_loss = DistillationLoss.of(config)
        self.vocabulary = 0  # ids that the tokenizer knows; output layers may be larger

    def check(self, folder: str, tokenizer: PreTrainedTokenizerBase, sources: Collection[str]) -> None:
        self.vocabulary = len(tokenizer)
        own = replace(self.config.model, tokenizer_path=None, custom_chat_template=None)
        for teacher in self.teachers:
            path = model_of(self.config, teacher.name, folder)
            if differ := set(load_tokenizer(own, path).get_vocab().items()) ^ set(tokenizer.get_vocab().items()):
                raise UserError(
                    f"the tokenizers of student {self.config.model.path} and teacher {path} differ, "
                    f"for one in {min(differ)[0]!r}",
                    "choose a teacher of the same family: log-probs are compared token by token",
                )
        if self.topk and self.how.topk > self.vocabulary:
            raise UserError(
                f"distillation.topk={self.how.topk}: the tokenizer knows {self.vocabulary} tokens", "take fewer"
            )
        if None not in self.teachers.values() and (lonely := set(sources) - set(self.teachers.values())):
            raise UserError(
                f"no teacher for rows of {', '.join(sorted(lonely))}",
                "set distillation.teacher_models.NAME.key to it",
            )

    def passes(self, batch: Batch, timer: Timer) -> list[Pass]:
        """With those that add teacher_logp_N or, for the forward KL, teacher_ids_NK and teacher_topk_logp_NK."""
        if self.topk:
            ids = torch.zeros(batch.N, self.how.topk, dtype=torch.int32)
            batch.add(teacher_ids_NK=ids, teacher_topk_logp_NK=torch.zeros(batch.N, self.how.topk))
        else:
            batch.add(teacher_logp_N=torch.zeros(batch.N))
        asked: list[Pass] = [(teacher, self._ask(teacher, batch, timer)) for teacher in self.teachers]
        return super().passes(batch, timer) + asked

    async def _ask(self, teacher: Role, batch: Batch, timer: Timer) -> None:
        """Fills in what a teacher says of its rows."""
        rows = self._rows_of(teacher, batch)
        if not len(rows):
            return
        t, own, place_N = self.config.teacher, batch.select(rows), batch.token_index(rows)
        micro = MicroBatching(t.log_prob_micro_batch_size_per_gpu, t.log_prob_max_token_len_per_gpu)
        want, k = (TOPK, self.how.topk) if self.topk else (LOGP, 0)
        with timer.phase("teacher"):
            out = await teacher.forward(own, want, self.temperature, micro, k=k)
        if self.topk:
            known_NK = out[Need.TOPK_IDS] < self.vocabulary  # what pads the teacher's output layer is no token
            batch["teacher_ids_NK"][place_N] = out[Need.TOPK_IDS].where(known_NK, 0)
            batch["teacher_topk_logp_NK"][place_N] = out[Need.TOPK_LOGP].where(known_NK, -torch.inf)
        else:
            batch["teacher_logp_N"][place_N] = out[Need.LOGP]

    def _rows_of(self, teacher: Role, batch: Batch) -> Tensor:
        key = self.teachers[teacher]
        sources = [t.meta["data_source"] for t in batch["trajectory_blob"]]
        return torch.tensor([i for i, source in enumerate(sources) if key in (None, source)], dtype=torch.int64)

    def advantage(self, batch: Batch) -> dict[str, float]:
        metrics = super().advantage(batch)
        if self.how.use_policy_gradient:
            batch.add(advantages_N=batch["advantages_N"] + distilled_advantage(batch, self.how))
        metrics |= teacher_metrics(batch)
        if len(self.teachers) > 1:
            for teacher in self.teachers:
                own = teacher_metrics(batch.select(self._rows_of(teacher, batch)))
                metrics |= {f"{name}/{teacher.name.removeprefix('teacher_')}": value for name, value in own.items()}
        return metrics

    def estimate(self, batch: Batch) -> None:
        """Without task rewards a token's worth is what its teacher says, and nothing else."""
        if self.how.use_task_rewards:
            super().estimate(batch)
        else:
            batch.add(advantages_N=torch.zeros(batch.N))
