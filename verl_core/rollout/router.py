"""Which replica gets which request: where its session's prefix is, as long as that keeps the replicas evenly loaded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from verl_core.rollout.protocol import TokenRequest

_SESSIONS = 100_000  # whose replica is remembered


@dataclass
class Seat:
    """A request's place on a replica: `tokens` that may still be drawn for it."""

    replica: int
    tokens: int


class Router:
    """Knows the outstanding tokens of each replica and the replica of each session. Thread-safe.

    A request goes to its session's replica while that has less than an even share of all outstanding tokens, or not
    more above it than the prefix is long: that many tokens another replica would have to read first. Else it goes to
    the replica with the fewest outstanding tokens, the first of equals. So the samples of a prompt stay together where
    there are prompts for everybody, and spread out where there are few. The same calls in the same order are always
    routed alike.
    """

    def __init__(self, replicas: int):
        self._lock = threading.Lock()
        self._outstanding = [0] * replicas
        self._home: OrderedDict[str, int] = OrderedDict()

    @property
    def outstanding(self) -> list[int]:
        """Tokens that may still be drawn on each replica."""
        with self._lock:
            return list(self._outstanding)

    def assign(self, requests: Sequence[TokenRequest], ready: Sequence[int]) -> list[Seat]:
        """A seat for each request on one of the replicas that are `ready`; to be given back with `release`."""
        with self._lock:
            total = sum(self._outstanding[r] for r in ready) + sum(request.sampling.max_tokens for request in requests)
            met = {request.session_id for request in requests if request.session_id in self._home}
            return [self._seat(request, ready, total / len(ready), request.session_id in met) for request in requests]

    def _seat(self, request: TokenRequest, ready: Sequence[int], even: float, met: bool) -> Seat:
        home = self._home.get(request.session_id)
        slack = len(request.ids) if met else 0
        if home is None or home not in ready or self._outstanding[home] >= even + slack:
            home = min(ready, key=lambda r: self._outstanding[r])
        self._home[request.session_id] = home
        self._home.move_to_end(request.session_id)
        if len(self._home) > _SESSIONS:
            self._home.popitem(last=False)
        seat = Seat(home, request.sampling.max_tokens)
        self._outstanding[home] += seat.tokens
        return seat

    def drawn(self, seat: Seat, tokens: int) -> None:
        """So many of the seat's tokens are no longer outstanding."""
        with self._lock:
            tokens = min(tokens, seat.tokens)
            seat.tokens -= tokens
            self._outstanding[seat.replica] -= tokens

    def release(self, seat: Seat) -> None:
        """The request has ended, or the replica has. May be called twice."""
        self.drawn(seat, seat.tokens)

    def forget(self, replica: int) -> None:
        """The replica has lost its prefixes."""
        with self._lock:
            for session in [session for session, home in self._home.items() if home == replica]:
                del self._home[session]

    def forget_all(self) -> None:
        """Every replica has lost its prefixes: they got new weights."""
        with self._lock:
            self._home.clear()
