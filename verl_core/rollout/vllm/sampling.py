"""Our sampling fields in vLLM's words. What vLLM would bend silently is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_core.config.errors import UserError
from verl_core.config.ranges import VLLM_TEMPERATURES
from verl_core.rollout.protocol import TokenRequest
from verl_core.rollout.rows import Row

if TYPE_CHECKING:
    from vllm import SamplingParams


def check_temperature(request: TokenRequest) -> None:
    """Raises UserError for a temperature that vLLM would change or refuse."""
    temperature, (coldest, hottest) = request.sampling.temperature, VLLM_TEMPERATURES
    if temperature and not coldest <= temperature <= hottest:
        raise UserError(
            f"request {request.request_id!r} has temperature {temperature:g}; vllm samples at 0 (greedy) or between "
            f"{coldest:g} and {hottest:g}",
            "set rollout.temperature within that, or rollout.engine=hf",
        )


def sampling_params(row: Row, eos_ids: frozenset[int]) -> SamplingParams:
    """vLLM's parameters of a row.

    Stop strings are not among them: the row watches for them itself, so that nothing is turned into text but the few
    tokens that may complete one. Log-probs are asked for as none but the sampled token's.
    """
    from vllm import SamplingParams

    sampling = row.request.sampling
    words: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": max(sampling.top_k, 0),  # 0 is off there
        "max_tokens": row.limit,
        "seed": row.request.seed % 2**63,  # its kernels take a signed 64-bit number; -1 would mean none
        "stop_token_ids": [] if sampling.ignore_eos else sorted(eos_ids),
        "ignore_eos": True,  # the ids that end a sequence are the ones above, not those of the model's folder
        "logprobs": 0,
        "detokenize": False,
    }
    return SamplingParams(**words, skip_clone=True)
