"""One generation: a batch that is refilled from a queue as rows end.

Every pass draws exactly one token for each running row. Rows that ended make room at once: the last rows move into
their slots, so a step never computes a row that is done, and waiting requests take the free slots at the end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from verl_core.rollout.hf.cache import Prefix, PrefixStore, SlotCache
from verl_core.rollout.rows import Row
from verl_core.rollout.sampling import SamplingBatch

_PREFILL_TOKENS = 8192  # padded prompt tokens in one forward: bounds its memory


class Decoder(Protocol):
    """What runs the model: see llama_family.py and generic.py."""

    def load(self, weights: dict[str, Tensor]) -> None: ...

    def prefill(self, ids_PT: Tensor, length_P: Tensor) -> Prefix: ...

    def decode(self, ids_B: Tensor, position_B: Tensor, length: int, cache: SlotCache) -> Tensor: ...


class Generation:
    """Runs a list of requests; `step` until `done`. The result depends on the list alone, not on time.

    Args:
        rows: the requests, in the order in which they get a slot.
        cache: at least as many slots as rows run at the same time, and positions for the longest.
        eos_ids: ids that end a row (finish=stop) unless its request ignores them.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        decoder: Decoder,
        cache: SlotCache,
        slots: int,
        eos_ids: frozenset[int],
        device: torch.device,
    ):
        self.rows = rows
        self.decoder = decoder
        self.cache = cache
        self.slots = slots
        self.eos_ids = eos_ids
        self.device = device
        self.queue = deque(rows)
        self.waiting = Counter(row.request.ids for row in rows)  # how many of the queue want this prompt
        self.prefixes = PrefixStore()
        self.running: list[Row] = []  # row i is in slot i
        self.sampling: SamplingBatch | None = None  # of the running rows; None when they changed

    @property
    def done(self) -> bool:
        return not self.queue and not self.running

    def step(self, version: int, aborted: set[str]) -> None:
        """Draws one token for every running row, new ones included. `version` marks the tokens."""
        if aborted:
            self._abort(aborted)
        logits = [self._decode()] if self.running else []
        fresh = self._next_rows()
        if fresh:
            logits.append(self._admit(fresh))
        if not self.running:
            return
        if self.sampling is None:
            requests = [row.request for row in self.running]
            self.sampling = SamplingBatch([r.sampling for r in requests], [r.seed for r in requests], self.device)
        position_B = np.array([row.length for row in self.running], dtype=np.uint64)
        ids_B, logp_B = self.sampling.draw(torch.cat(logits), position_B)
        drawn = torch.stack([ids_B.double(), logp_B.double()]).tolist()  # the step's one wait for the device
        for slot, (row, token, logp) in enumerate(zip(self.running, *drawn, strict=True)):
            self._append(row, slot, int(token), logp, version)
        self._compact()

    def _decode(self) -> Tensor:
        last = [[row.ids[-1] for row in self.running], [row.length - 1 for row in self.running]]
        ids_B, position_B = torch.tensor(last, device=self.device)
        return self.decoder.decode(ids_B, position_B, max(last[1]) + 1, self.cache)

    def _next_rows(self) -> list[Row]:
        free = self.slots - len(self.running)
        fresh = [self.queue.popleft() for _ in range(min(free, len(self.queue)))]
        self.waiting.subtract(row.request.ids for row in fresh)
        return fresh

    def _admit(self, fresh: list[Row]) -> Tensor:
        """Brings prompts into the slots after the running rows; a prompt wanted by several runs once. Returns the
        logits [len(fresh), V] of their first tokens."""
        first = len(self.running)
        wanted: dict[tuple[int, ...], list[int]] = {}
        for slot, row in enumerate(fresh, first):
            wanted.setdefault(row.request.ids, []).append(slot)
        logits_FV: Tensor | None = None
        for prompts, prefix in self._prefixes_for(list(wanted)):
            which = [p for p, prompt in enumerate(prompts) for _ in wanted[prompt]]
            slots = [slot for prompt in prompts for slot in wanted[prompt]]
            self.cache.write_prefix(prefix, which, slots)
            if logits_FV is None:
                logits_FV = prefix.logits_PV.new_empty(len(fresh), prefix.logits_PV.shape[1])
            logits_FV[[slot - first for slot in slots]] = prefix.logits_PV[which]
            for p, prompt in enumerate(prompts):
                if self.waiting[prompt] <= 0:
                    self.prefixes.drop(prompt)
                elif self.prefixes.get(prompt) is None:
                    self.prefixes.put(prompt, prefix.pick(p))
        self.running += fresh
        self.sampling = None
        assert logits_FV is not None
        return logits_FV

    def _prefixes_for(self, prompts: list[tuple[int, ...]]) -> Iterator[tuple[list[tuple[int, ...]], Prefix]]:
        """(prompts, their prefix) pairs: stored ones alone, the others in chunks of bounded size."""
        todo = []
        for prompt in prompts:
            stored = self.prefixes.get(prompt)
            if stored is None:
                todo.append(prompt)
            else:
                yield [prompt], stored
        while todo:
            longest, chunk = 0, list[tuple[int, ...]]()
            while todo and (not chunk or max(longest, len(todo[0])) * (len(chunk) + 1) <= _PREFILL_TOKENS):
                longest = max(longest, len(todo[0]))
                chunk.append(todo.pop(0))
            yield chunk, self._prefill(chunk, longest)

    def _prefill(self, prompts: list[tuple[int, ...]], longest: int) -> Prefix:
        # Padding repeats the prompt's last id: an id that the prompt does not hold could have NaN weights.
        padded = [[*prompt, *[prompt[-1]] * (longest - len(prompt))] for prompt in prompts]
        ids_PT = torch.tensor(padded, device=self.device)
        length_P = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        return self.decoder.prefill(ids_PT, length_P)

    def _append(self, row: Row, slot: int, token: int, logp: float, version: int) -> None:
        row.push(token, logp, version, self.eos_ids)
        if "nan" in row.extras:
            self.cache.clear(slot)

    def _abort(self, aborted: set[str]) -> None:
        for row in (*self.running, *self.queue):
            if row.request.request_id in aborted:
                row.finish = "abort"
        self.waiting.subtract(row.request.ids for row in self.queue if row.finish)
        self.queue = deque(row for row in self.queue if not row.finish)
        self._compact()

    def _compact(self) -> None:
        """Fills the slots of ended rows with the last running ones."""
        alive = sum(row.finish is None for row in self.running)
        if alive == len(self.running):
            return
        holes = [slot for slot in range(alive) if self.running[slot].finish]
        movers = [slot for slot in range(alive, len(self.running)) if not self.running[slot].finish]
        if holes:
            self.cache.move(movers, holes, max(self.running[slot].length for slot in movers))
        for source, target in zip(movers, holes, strict=True):
            self.running[target] = self.running[source]
        del self.running[alive:]
        self.sampling = None
