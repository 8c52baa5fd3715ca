"""How a SGLang scheduler of ours draws: by seed and position, with the log-prob of what was drawn from.

SGLang's own sampler knows seeds only together with its slow deterministic kernels, and reports log-probs before top-k
and top-p. This one takes its place and draws as `verl_core.rollout.sampling` defines it.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.sampler import Sampler, register_sampler_backend
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from torch import Tensor

from verl_core.rollout.sampling import Columns, Kinds, draw, streams


def install() -> None:
    """Puts the sampler in the place of SGLang's, and the seeds of requests where it finds them."""
    register_sampler_backend("pytorch", SeededSampler)
    SamplingBatchInfo.adjusted_from_schedule_batch = _add_seeds


class SeededSampler(Sampler):
    def forward(
        self,
        logits_output: Any,
        sampling_info: SamplingBatchInfo,
        return_logprob: bool,
        top_logprobs_nums: list[int],
        token_ids_logprobs: list[list[int]],
        positions: Tensor,
    ) -> Tensor:
        """Draws the next id of every row. `positions` are those of the last tokens."""
        columns, kinds = _columns(sampling_info)
        id_B, logp_B = draw(logits_output.next_token_logits, positions.long() + 1, columns, kinds)
        if return_logprob:
            logits_output.next_token_logprobs = logp_B
        id_B = id_B.to(torch.int32)
        self._sync_token_ids_across_tp(id_B, sampling_info)
        return id_B


def _columns(info: SamplingBatchInfo) -> tuple[Columns, Kinds]:
    """SGLang writes a greedy row as top-k 1 at temperature 1 (`sampling.py` never asks for top-k 1 otherwise)."""
    greedy_B1 = info.top_ks[:, None] == 1
    columns = Columns(
        streams(info.sampling_seed),
        info.temperatures,
        greedy_B1,
        info.top_ks[:, None].masked_fill(greedy_B1, -1),
        info.top_ps[:, None].double().masked_fill(greedy_B1, 1.0),
    )
    filtered = (info.need_top_k_sampling or info.need_top_p_sampling) and not info.is_all_greedy
    return columns, Kinds(warm=not info.is_all_greedy, greedy=info.is_any_greedy, filtered=filtered)


def _add_seeds(info: SamplingBatchInfo, batch: Any, vocab_size: int) -> None:
    seeds = [request.sampling_params.sampling_seed or 0 for request in batch.reqs]
    pinned = torch.device(batch.device).type == "cuda"
    info.sampling_seed = torch.tensor(seeds, dtype=torch.int64, pin_memory=pinned).to(batch.device, non_blocking=True)
