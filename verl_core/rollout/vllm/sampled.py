"""What vLLM has drawn in a step, as one list of log-probs.

vLLM's scheduler cuts the log-probs of a step into three arrays for each request, which its steps wait for: they are
taken out of the model runner's answer before the scheduler sees it. Without speculative decoding a request has one row.
"""

from __future__ import annotations

from typing import Any


class Sampled:
    """Watches what a vLLM scheduler is told; `logp` is about the step it was told of last."""

    def __init__(self, scheduler: Any):
        self._row: dict[str, int] = {}
        self._logps: list[float] = []
        self._update = scheduler.update_from_output
        scheduler.update_from_output = self._update_without_logps

    def logp(self, key: str) -> float:
        """Of the id that this request was given."""
        return self._logps[self._row[key]]

    def _update_without_logps(self, scheduled: Any, drawn: Any) -> Any:
        if drawn.logprobs is not None:
            self._row = drawn.req_id_to_index
            self._logps = drawn.logprobs.logprobs[:, 0].tolist()  # the first column is the sampled id
            drawn.logprobs = None
        return self._update(scheduled, drawn)
