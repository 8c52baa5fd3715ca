"""What the device keeps of the running rows, and the steps that change it without asking the host.

Every tensor here lies where it lies until the stepper is dropped, so a decode step can be a CUDA graph. On the CPU the
same step runs as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from verl_core.rollout.hf.cache import Prefix, SlotCache
from verl_core.rollout.hf.graphs import StepGraphs
from verl_core.rollout.protocol import Sampling
from verl_core.rollout.sampling import Columns, Kinds, draw
from verl_core.rollout.transfer import Download, upload


class Decoder(Protocol):
    """What runs the model: see llama_family.py and generic.py."""

    capturable: bool  # `decode` never waits for the device and allocates nothing that stays: it can be a CUDA graph

    def load(self, weights: dict[str, Tensor]) -> None: ...

    def copies(self, weights: dict[str, Tensor]) -> dict[str, Tensor]: ...

    def addresses(self) -> tuple[int, ...]: ...

    def prefill(self, ids_PT: Tensor, length_P: Tensor) -> Prefix: ...

    def decode(self, ids_B: Tensor, position_B: Tensor, length: int, cache: SlotCache) -> Tensor: ...


class Stepper:
    """Last ids, positions and sampling parameters of a cache's slots.

    Args:
        cache: keys and values; its slots are the rows.
        graphs: where decode steps are recorded; None: they run as they are.
    """

    def __init__(self, decoder: Decoder, cache: SlotCache, device: torch.device, graphs: StepGraphs | None):
        self.decoder, self.cache, self.device, self.graphs = decoder, cache, device, graphs
        S = cache.slots
        # A slot in which nothing runs holds an id and parameters with which it can be computed in vain.
        self.ids_S = torch.zeros(S, dtype=torch.int64, device=device)
        self.position_S = torch.zeros(S, dtype=torch.int64, device=device)
        self.columns = Columns.of([Sampling(1)] * S, [0] * S, device)
        self.drawn_S2 = torch.zeros(S, 2, dtype=torch.float64, device=device)  # id and log-prob, exact in float64

    def start(self, slots: Sequence[int], logits_FV: Tensor, sampling: Sequence[Sampling], seeds: Sequence[int],
              lengths: Sequence[int]) -> Download:  # fmt: skip
        """Draws the first tokens of rows that now live in these slots, behind prompts of these lengths. Returns
        [F, 2]: id and log-prob."""
        columns = Columns.of(sampling, seeds, self.device)
        ids_F, logp_F = draw(logits_FV, upload(lengths, self.device), columns, Kinds.of(sampling))
        slot_F = upload(slots, self.device)
        self.ids_S[slot_F] = ids_F
        self.columns.put(slot_F, columns)
        return Download(torch.stack([ids_F.double(), logp_F.double()], 1))

    def step(self, position_B: Sequence[int], length: int, kinds: Kinds) -> Download:
        """One more token for each of the first B slots, whose last token stands at its position. A slot in which
        nothing runs is given position 0, which the next prompt there overwrites. `length` is past the largest position,
        a multiple of 8. Returns [B, 2]: id and log-prob."""
        B = len(position_B)
        self.position_S[:B] = upload(position_B, self.device)
        if self.graphs is None:
            self._step(B, length, kinds)
        else:
            self.graphs.run((B, length, kinds), lambda: self._step(B, length, kinds))
        return Download(self.drawn_S2[:B])

    def _step(self, B: int, length: int, kinds: Kinds) -> None:
        position_B = self.position_S[:B]
        logits_BV = self.decoder.decode(self.ids_S[:B], position_B, length, self.cache)
        ids_B, logp_B = draw(logits_BV, position_B + 1, self.columns.first(B), kinds)
        self.ids_S[:B] = ids_B
        self.drawn_S2[:B, 0] = ids_B
        self.drawn_S2[:B, 1] = logp_B

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Brings rows with up to `length` cached positions to other slots (no slot is both)."""
        self.cache.move(sources, targets, length)
        source_M, target_M = upload(sources, self.device), upload(targets, self.device)
        self.ids_S[target_M] = self.ids_S[source_M]
        self.columns.put(target_M, self.columns.at(source_M))
