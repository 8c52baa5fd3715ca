"""How a rank of the trainer reaches the weight inbox of an engine on another pool: through that rank, a Ray actor."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

WEIGHTS = "weights"
"""The actors' concurrency group for these calls."""


@dataclass(frozen=True)
class RayTell:
    """A `verl_core.weights.sending.Tell`; travels between processes."""

    actor: Any

    def __call__(self, method: str, **message: Any) -> Future[dict[str, Any]]:
        from verl_core.controller.executors.ray import translated

        answer: Future[dict[str, Any]] = Future()
        answer.set_running_or_notify_cancel()

        def pass_on(done: Future[Any]) -> None:
            if (error := done.exception()) is not None:
                answer.set_exception(translated(error) if isinstance(error, Exception) else error)
            else:
                answer.set_result(done.result())

        call = self.actor.tell_inbox.options(concurrency_group=WEIGHTS).remote(method, message)
        call.future().add_done_callback(pass_on)
        return answer
