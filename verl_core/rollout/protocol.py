"""The border of a rollout engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:  # requests and completions need no torch: neither does the process that only passes them on
    from torch import Tensor

Finish = Literal["stop", "length", "abort"]
PauseMode = Literal["abort", "wait", "keep"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy. Every field reaches the engine or is refused by it."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class TokenRequest:
    """One sequence to continue. `seed` alone decides its random draws: the same request gives the same tokens in any
    batch (up to rounding of the model itself), and two samples of a prompt have different seeds."""

    request_id: str
    session_id: str  # requests of a session share a prefix (the G samples of a prompt; the turns of an agent)
    ids: tuple[int, ...]
    sampling: Sampling
    seed: int

    def after(self, part: Completion) -> TokenRequest:
        """The request for what is left after an interrupted completion. As draws are keyed by position, both parts
        together are what an uninterrupted one would have been, and never longer."""
        left = replace(self.sampling, max_tokens=self.sampling.max_tokens - len(part.ids))
        return replace(self, ids=(*self.ids, *part.ids), sampling=left)


@dataclass
class Completion:
    """What was sampled. `logps[i]` is the log-prob of `ids[i]` under the distribution it was drawn from (after
    temperature, top-k and top-p); `versions[i]` the weight version. The final end-of-sequence id is part of `ids`."""

    request_id: str
    ids: list[int]
    logps: list[float]
    versions: list[int]
    finish: Finish
    extras: dict[str, Any] = field(default_factory=dict)


class RolloutEngine(Protocol):
    def generate(self, requests: Sequence[TokenRequest]) -> list[Completion]:
        """Continues every request; completions come back in the order of the requests. Blocks: callers on an event
        loop run it in a thread."""
        ...

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends these requests as soon as possible with the tokens they have (finish=abort). Thread-safe."""
        ...

    def pause(self, mode: PauseMode) -> None:
        """Brings the engine to a stand: `abort` ends what runs with the tokens it has, `wait` lets it finish, `keep`
        freezes it between two tokens. What is asked later waits for `resume` in every mode."""
        ...

    def resume(self) -> None: ...

    def sleep(self) -> None:
        """Gives back KV-cache and weight memory until `wake`."""
        ...

    def wake(self) -> None: ...

    def update_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes new weights by their Hugging Face names; tokens sampled afterwards carry `version`. Raises KeyError
        for an unknown name and ValueError for a wrong shape; all names must come."""
        ...
