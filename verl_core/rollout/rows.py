"""A sequence while it grows: what every engine does with a drawn token, and which requests it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from verl_core.config.errors import UserError
from verl_core.rollout.protocol import Completion, TokenRequest
from verl_core.rollout.stopping import StopStrings


@dataclass
class Row:
    """A request that runs. `limit` is how many tokens it may have."""

    request: TokenRequest
    limit: int
    watch: StopStrings | None
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: Any = None
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return len(self.request.ids) + len(self.ids)

    def push(self, token: int, logp: float, version: int, eos_ids: frozenset[int]) -> None:
        """Takes the next token; sets `finish` where it ends the row. A NaN log-prob ends it without the token: the row
        cannot go on, the others can."""
        if logp != logp:
            self.finish, self.extras["nan"] = "abort", 1
            return
        self.ids.append(token)
        self.logps.append(logp)
        self.versions.append(version)
        if token in eos_ids and not self.request.sampling.ignore_eos:
            self.finish = "stop"
        elif self.watch is not None and (stop := self.watch.push(token)) is not None:
            self.finish, self.extras["stop"] = "stop", stop
        elif len(self.ids) >= self.limit:
            self.finish = "length"

    def completion(self) -> Completion:
        return Completion(self.request.request_id, self.ids, self.logps, self.versions, self.finish, self.extras)


def row_for(request: TokenRequest, max_model_len: int, tokenizer: Any) -> Row:
    """The row of a request, capped by the model's length.

    Raises:
        UserError: the prompt is empty or leaves no room within max_model_len, or a sampling field is out of range.
    """
    sampling, prompt = request.sampling, len(request.ids)
    place = f"request {request.request_id!r}"
    if prompt == 0:
        raise UserError(f"{place} has an empty prompt")
    if prompt >= max_model_len:
        raise UserError(
            f"{place}: a prompt of {prompt} tokens leaves no room in rollout.max_model_len={max_model_len}",
            "raise rollout.max_model_len or lower data.max_prompt_length",
        )
    if sampling.max_tokens < 1 or sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or "" in sampling.stop:
        raise UserError(f"{place} has a sampling value out of range: {sampling}")
    watch = StopStrings(tokenizer, sampling.stop) if sampling.stop else None
    return Row(request, min(sampling.max_tokens, max_model_len - prompt), watch)
