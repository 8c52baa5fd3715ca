"""One generation: slots that are refilled from a queue as rows end.

Every step draws exactly one token for each running row. Slots of ended rows go to waiting requests; when none wait, the
last rows move into them, so that a step computes no more rows than its shape asks for.

The host need not know a token to ask for the next one. With a lag of 1 it reads the tokens of a step while the device
computes the next: a row whose end only its token tells is then computed once more in vain, and one that ends by its
length is not, because that the host knows. What is drawn behind an end is dropped, so no result depends on the lag.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verl_core.rollout.hf.cache import Prefix, PrefixStore
from verl_core.rollout.hf.shapes import Shapes
from verl_core.rollout.hf.stepper import Stepper
from verl_core.rollout.rows import Row
from verl_core.rollout.sampling import Kinds
from verl_core.rollout.transfer import Download, upload

_PREFILL_TOKENS = 8192  # padded prompt tokens in one forward: bounds its memory


@dataclass(eq=False)
class Seat:
    """A row in its slot."""

    row: Row
    drawn: int = 0  # tokens asked for
    unread: int = 0  # steps that computed it and have not been read
    tainted: bool = False  # NaN was computed in the slot

    @property
    def position(self) -> int:
        """Of the last token asked for."""
        return len(self.row.request.ids) + self.drawn - 1

    @property
    def runs(self) -> bool:
        return self.row.finish is None and self.drawn < self.row.limit


@dataclass(frozen=True)
class Flight:
    """A step that the device was given: which entry of its tokens is whose."""

    number: int
    seats: list[tuple[int, Seat]]
    tokens: Download
    version: int


class Generation:
    """Runs a list of requests; `step` until `done`. The result depends on the list alone, not on time.

    Args:
        rows: the requests, in the order in which they get a slot.
        stepper: at least as many slots as rows run at the same time, and positions for the longest.
        slots: how many rows run at the same time.
        eos_ids: ids that end a row (finish=stop) unless its request ignores them.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        stepper: Stepper,
        shapes: Shapes,
        slots: int,
        eos_ids: frozenset[int],
        device: torch.device,
    ):
        self.rows = rows
        self.stepper = stepper
        self.shapes = shapes
        self.slots = slots
        self.eos_ids = eos_ids
        self.device = device
        self.queue = deque(rows)
        self.waiting = Counter(row.request.ids for row in rows)  # how many of the queue want this prompt
        self.prefixes = PrefixStore()
        self.seats: list[Seat | None] = [None] * slots
        self.flights: deque[Flight] = deque()
        self.kinds = Kinds.of(row.request.sampling for row in rows)
        self._number = 0

    @property
    def done(self) -> bool:
        return not self.queue and not any(self.seats)

    def step(self, version: int, aborted: set[str]) -> None:
        """Asks for one token of every running row, new ones included, and reads those that are due. `version` marks the
        tokens."""
        self._number += 1
        if aborted:
            self._abort(aborted)
        self._decode(version)
        self._read(self._number - self.shapes.lag)
        fresh = self._next_rows()
        if fresh:
            self._admit(fresh, version)
            self._read(self._number - self.shapes.lag)

    def _decode(self, version: int) -> None:
        if not self.queue:
            self._pack()
        running = self._running()
        if not running:
            return
        position_B = [0] * self.shapes.width(running[-1][0] + 1)
        for slot, seat in running:
            position_B[slot] = seat.position
        length = self.shapes.reach(max(position_B) + 1)
        self._fly(running, self.stepper.step(position_B, length, self.kinds), version)

    def _running(self) -> list[tuple[int, Seat]]:
        return [(slot, seat) for slot, seat in enumerate(self.seats) if seat is not None and seat.runs]

    def _pack(self) -> None:
        """Moves the last rows into free slots where that makes the step smaller."""
        running = self._running()
        width = self.shapes.width(len(running)) if running else 0
        movers = [(slot, seat) for slot, seat in running if slot >= width]
        holes = [slot for slot in range(min(width, self.slots)) if self.seats[slot] is None][: len(movers)]
        if not movers or len(holes) < len(movers):
            return
        self.stepper.move([slot for slot, _ in movers], holes, max(seat.position for _, seat in movers))
        for (source, seat), target in zip(movers, holes, strict=True):
            self.seats[source], self.seats[target] = None, seat

    def _fly(self, seats: list[tuple[int, Seat]], tokens: Download, version: int) -> None:
        for _, seat in seats:
            seat.drawn += 1
            seat.unread += 1
        self.flights.append(Flight(self._number, seats, tokens, version))

    def _read(self, until: int) -> None:
        """Hands out the tokens of the steps up to this one; the only wait for the device."""
        while self.flights and self.flights[0].number <= until:
            flight = self.flights.popleft()
            drawn_B = flight.tokens.read()
            for entry, seat in flight.seats:
                token, logp = drawn_B[entry]
                seat.unread -= 1
                seat.tainted |= logp != logp
                if seat.row.finish is None:
                    seat.row.push(int(token), logp, flight.version, self.eos_ids)
        self._release()

    def _release(self) -> None:
        """Frees the slots of ended rows that no unread step has touched."""
        for slot, seat in enumerate(self.seats):
            if seat is not None and seat.row.finish and not seat.unread:
                self.seats[slot] = None
                if seat.tainted:
                    self.stepper.cache.clear(slot)

    def _next_rows(self) -> list[tuple[int, Seat]]:
        free = [slot for slot, seat in enumerate(self.seats) if seat is None]
        few = len(free) < min(self.shapes.refill(self.slots), len(self.queue))
        if few and len(free) < self.slots:
            return []
        fresh = [(slot, Seat(self.queue.popleft())) for slot in free[: len(self.queue)]]
        self.waiting.subtract(seat.row.request.ids for _, seat in fresh)
        return fresh

    def _admit(self, fresh: list[tuple[int, Seat]], version: int) -> None:
        """Brings prompts into free slots and draws their first tokens; a prompt wanted by several runs once."""
        wanted: dict[tuple[int, ...], list[int]] = {}
        for entry, (_, seat) in enumerate(fresh):
            wanted.setdefault(seat.row.request.ids, []).append(entry)
        logits_FV: Tensor | None = None
        for prompts, prefix in self._prefixes_for(list(wanted)):
            which = [p for p, prompt in enumerate(prompts) for _ in wanted[prompt]]
            entries = [entry for prompt in prompts for entry in wanted[prompt]]
            self.stepper.cache.write_prefix(prefix, which, [fresh[entry][0] for entry in entries])
            if logits_FV is None:
                logits_FV = prefix.logits_PV.new_empty(len(fresh), prefix.logits_PV.shape[1])
            logits_FV[self._upload(entries)] = prefix.logits_PV[self._upload(which)]
            for p, prompt in enumerate(prompts):
                if self.waiting[prompt] <= 0:
                    self.prefixes.drop(prompt)
                elif self.prefixes.get(prompt) is None:
                    self.prefixes.put(prompt, prefix.pick(p))
        assert logits_FV is not None
        slots, asked = [slot for slot, _ in fresh], [seat.row.request for _, seat in fresh]
        tokens = self.stepper.start(
            slots, logits_FV, [r.sampling for r in asked], [r.seed for r in asked], [len(r.ids) for r in asked]
        )
        for slot, seat in fresh:
            self.seats[slot] = seat
        self._fly([(entry, seat) for entry, (_, seat) in enumerate(fresh)], tokens, version)

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
        lengths = self._upload([len(prompt) for prompt in prompts])
        return self.stepper.decoder.prefill(self._upload(padded), lengths)

    def _upload(self, values: Iterable[object]) -> Tensor:
        return upload(values, self.device)

    def _abort(self, aborted: set[str]) -> None:
        """Rows end with the tokens that were read."""
        for row in (*(seat.row for seat in self.seats if seat), *self.queue):
            if row.finish is None and row.request.request_id in aborted:
                row.finish = "abort"
        self.waiting.subtract(row.request.ids for row in self.queue if row.finish)
        self.queue = deque(row for row in self.queue if not row.finish)
        self._release()
