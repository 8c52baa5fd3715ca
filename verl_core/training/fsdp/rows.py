"""The rows that an engine computes a batch in: micro-batches cut, padded to few lengths, equally many on all ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from verl_core.algorithms.loss import Need
from verl_core.batch import Batch
from verl_core.batch.shared_prompt import row_tokens, shared_S
from verl_core.models import cudnn_ragged
from verl_core.models.ulysses import Split
from verl_core.platforms import Platform
from verl_core.training.fsdp.compiling import of_any_layout
from verl_core.training.fsdp.cutting import cut
from verl_core.training.fsdp.network import READS
from verl_core.training.fsdp.packed_input import PackedInput, filler, full_row, segments
from verl_core.training.protocol import MicroBatching


class Rows:
    """The rows of one engine.

    split: where ranks divide a row's tokens. group: the ranks that compute together. compiled: whether layers are, so
    that rows shall have few lengths. share_prompt: what the sequences of a group begin with alike stands once in a row.
    """

    def __init__(
        self,
        platform: Platform,
        split: Split | None,
        group: dist.ProcessGroup | None,
        compiled: bool,
        share_prompt: bool,
    ):
        self.platform, self.split, self.group = platform, split, group
        self.compiled, self.share_prompt = compiled, share_prompt
        self.world = dist.get_world_size(group) if dist.is_initialized() else 1
        self._met: set[tuple[object, ...]] = set()

    def inputs(
        self, batch: Batch, rule: MicroBatching, needs: frozenset[Need] = frozenset(), whole_groups: bool = False
    ) -> Iterator[tuple[list[int] | None, PackedInput]]:
        """Micro-batches as sequence indices and packed input. All ranks have equally many, since each one runs
        collectives: a rank with fewer cuts its own further, and where it has not enough sequences (or whole groups)
        repeats a filler that counts for nothing (index None)."""
        if self.share_prompt:
            batch = _sharing(batch)
        whole = list(range(batch.S))
        cuts = cut(batch, rule, self._together, whole_groups, self._most)
        least = self._least(batch, cuts, rule)
        for index in cuts:
            own = filler(batch) if index is None else batch if index == whole else batch.select(index)
            tokens = row_tokens(own) if self.share_prompt else own.N
            yield index, self._packed(own, self._length(tokens, rule), needs, least)

    def to_compile(
        self, batch: Batch, rule: MicroBatching, needs: frozenset[Need], code: tuple[bool, ...]
    ) -> Iterator[PackedInput]:
        """Where layers are compiled for a row's length alone (with cuDNN's kernel), a row of each length before the
        first pass of each `code`, which is what they are compiled for beside it: so no later pass stops for seconds
        because a length appears. Equally many on all ranks."""
        if rule.tokens is None or not self.compiled or not cudnn_ragged.usable(self.platform.device):
            return
        step = self._step(rule)
        if (step, *code) in self._met:
            return
        self._met.add((step, *code))
        kinds = [batch, _sharing(batch)] if self.share_prompt else [batch]  # some rows have no group of several
        for row in range(step, self._length(rule.tokens * self._together, rule) + 1, step):
            for kind in kinds:
                yield self._packed(full_row(kind, row), row, needs, (0, 0))

    @property
    def _together(self) -> int:
        """Ranks whose token budgets make one row."""
        return self.split.size if self.split and not self.split.gathers else 1

    def _most(self, count: int) -> int:
        """The largest of all ranks' counts."""
        if self.world == 1:
            return count
        most = torch.tensor(count, device=self.platform.device)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self.group)
        return int(most)

    def _packed(self, batch: Batch, row: int, needs: frozenset[Need], least: tuple[int, int]) -> PackedInput:
        columns = [READS[need] for need in needs & READS.keys()]
        x = PackedInput.of(batch, self.platform.device, row, self.split, columns, least)
        if self.compiled:
            of_any_layout(x.packing)
        return x

    def _length(self, tokens: int, rule: MicroBatching) -> int:
        """Of the padded row. Ranks that split a row divide it."""
        step = self._step(rule)
        return -(-tokens // step) * step

    def _step(self, rule: MicroBatching) -> int:
        """Compiled layers see four lengths only, the quarters of the token budget, where there is one."""
        quarter = max(1, rule.tokens // 4) if self.compiled and rule.tokens else 1
        ranks = self.split.size if self.split else 1
        return quarter * ranks if self.split is None or not self.split.gathers else -(-quarter // ranks) * ranks

    def _least(self, batch: Batch, cuts: list[list[int] | None], rule: MicroBatching) -> tuple[int, int]:
        """The most sequences of a row of these, and the longest one: what all rows are laid out for where layers are
        compiled, so that kernels have few plans to make and no layer is compiled anew (seconds, in mid-run) for a row
        with few or short ones."""
        if not self.compiled or "shared_len_S" in batch:
            return 0, 0
        rows = [batch.length_S[index].tolist() for index in cuts if index is not None]
        found = [segments(row, self._length(sum(row), rule)) for row in rows]
        return max((S for S, _ in found), default=0), max((longest for _, longest in found), default=0)


def _sharing(batch: Batch) -> Batch:
    return batch.drop().add(shared_len_S=shared_S(batch))
