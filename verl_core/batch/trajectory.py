"""What one answer is, from the agent loop to the trainer. Token ids travel; text is never tokenised again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from verl_core.batch.batch import Batch


@dataclass
class Segment:
    """Tokens [start, end) of a trajectory that came from one place."""

    kind: str  # prompt | response | tool
    start: int
    end: int


@dataclass
class Trajectory:
    """One sequence of token ids, who produced each, and what it earned.

    `ids`, `mask`, `logps` and `versions` have one entry a token. `mask` is 1 where the model produced the token; there
    `logps` is the engine's log-prob of the id under the distribution it was sampled from and `versions` the weight
    version it was sampled with; elsewhere they are 0 and -1.
    """

    ids: list[int]
    mask: list[int]
    logps: list[float]
    versions: list[int]
    segments: list[Segment]
    group: str  # uid of the prompt; the G trajectories of a prompt share it
    sample: int  # 0..G-1 within the group
    session: str = ""
    finish: str = "stop"  # stop | length | abort
    reward: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)  # data_source, ground_truth, extra_info, text of the answer

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Trajectory:
        """From what `dataclasses.asdict` makes of one, also by way of JSON."""
        return cls(**{**fields, "segments": [Segment(**s) for s in fields["segments"]]})

    @property
    def response_ids(self) -> list[int]:
        return [i for i, m in zip(self.ids, self.mask, strict=True) if m]


def collate(groups: Sequence[Sequence[Trajectory]]) -> Batch:
    """Groups of trajectories (one list a prompt) as one Batch, sequences in the given order.

    Columns: ids_N int64, mask_N bool, rollout_logp_N float32, version_N int32; reward_S float32, prompt_len_S int64
    (tokens before the first produced one), truncated_S bool (finish == length), sample_S int64; trajectory_blob.
    Raises ValueError for a trajectory whose token lists differ in length.
    """
    rows = [t for g in groups for t in g]
    for t in rows:
        if not len(t.ids) == len(t.mask) == len(t.logps) == len(t.versions):
            raise ValueError(
                f"trajectory {t.group}/{t.sample} has {len(t.ids)} ids, {len(t.mask)} mask, {len(t.logps)} logps and "
                f"{len(t.versions)} versions entries"
            )
    flat = lambda name, dtype: torch.tensor([x for t in rows for x in getattr(t, name)], dtype=dtype)  # noqa: E731
    return Batch(
        length_S=torch.tensor([len(t.ids) for t in rows], dtype=torch.int64),
        group_S=torch.tensor([p for p, g in enumerate(groups) for _ in g], dtype=torch.int64),
        columns={
            "ids_N": flat("ids", torch.int64),
            "mask_N": flat("mask", torch.bool),
            "rollout_logp_N": flat("logps", torch.float32),
            "version_N": flat("versions", torch.int32),
            "reward_S": torch.tensor([t.reward for t in rows], dtype=torch.float32),
            "prompt_len_S": torch.tensor([_prompt_length(t) for t in rows], dtype=torch.int64),
            "truncated_S": torch.tensor([t.finish == "length" for t in rows], dtype=torch.bool),
            "sample_S": torch.tensor([t.sample for t in rows], dtype=torch.int64),
            "trajectory_blob": rows,
        },
    )


def _prompt_length(t: Trajectory) -> int:
    return next((i for i, m in enumerate(t.mask) if m), len(t.mask))
