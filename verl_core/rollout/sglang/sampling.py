"""A row in SGLang's words. What SGLang would bend silently is put so that it does not."""

from __future__ import annotations

from typing import Any

from verl_core.config.errors import UserError
from verl_core.rollout.protocol import TokenRequest
from verl_core.rollout.rows import Row

COLDEST = 1e-6  # SGLang samples greedily below
TOLD_EVERY = 16  # tokens that SGLang hands over at a time


def check_temperature(request: TokenRequest) -> None:
    """Raises UserError for a temperature that SGLang would change."""
    temperature = request.sampling.temperature
    if 0 < temperature < COLDEST:
        raise UserError(
            f"request {request.request_id!r} has temperature {temperature:g}; sglang samples at 0 (greedy) or from "
            f"{COLDEST:g}",
            "set rollout.temperature=0",
        )


def sampling_words(row: Row, eos_ids: frozenset[int]) -> dict[str, Any]:
    """SGLang's sampling parameters for what the row still lacks.

    Stop strings are not among them: the row watches for them itself, token by token.
    """
    sampling = row.request.sampling
    words: dict[str, Any] = {
        "max_new_tokens": row.limit - len(row.ids),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if sampling.top_k > 0 else -1,
        "ignore_eos": sampling.ignore_eos,
        "sampling_seed": signed(row.request.seed),
        "stream_interval": 1 if row.watch is not None else TOLD_EVERY,
    }
    if not sampling.ignore_eos:
        words["stop_token_ids"] = sorted(eos_ids)
    if sampling.top_k == 1 and sampling.temperature:  # SGLang's sign for greedy, whose log-probs are of another kind
        words |= {"top_k": -1, "top_p": _ONE_TOKEN}
    return words


_ONE_TOKEN = 1e-9  # a share that the likeliest id has alone


def signed(seed: int) -> int:
    """The seed modulo 2**64 as the signed number with the same bits."""
    return (seed + 2**63) % 2**64 - 2**63
