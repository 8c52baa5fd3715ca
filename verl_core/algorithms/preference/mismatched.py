"""Prompts with the answers of other prompts: where KTO's baseline, an estimate of KL(policy, reference), is taken."""

from __future__ import annotations

import torch

from verl_core.batch import Batch


def mismatched(batch: Batch) -> Batch:
    """Each sequence's prompt followed by the answer of a sequence of another group; no sequences where there is only
    one group. Reads ids_N, mask_N and prompt_len_S, which the result has too (arXiv 2402.01306, section 4.1: outputs of
    the same batch, shifted)."""
    order = batch.group_S.argsort(stable=True)
    largest = int(torch.bincount(batch.group_S).max()) if batch.S else 0
    shifted = order.roll(-largest)  # past the end of one's own group, if it is not more than half of all
    apart = batch.group_S[order] != batch.group_S[shifted]
    prompt_of, answer_of = order[apart], shifted[apart]

    prompt_S, length_S = batch["prompt_len_S"][prompt_of], batch.length_S[answer_of]
    answer_S = length_S - batch["prompt_len_S"][answer_of]
    mixed = Batch(prompt_S + answer_S, torch.arange(len(prompt_of)), {})
    inside_N = mixed.position_N < prompt_S[mixed.seq_N]
    start = batch.cu_seqlens_S1[:-1]
    from_prompt_N = start[prompt_of][mixed.seq_N] + mixed.position_N
    skipped_N = (batch["prompt_len_S"][answer_of] - prompt_S)[mixed.seq_N]
    from_answer_N = start[answer_of][mixed.seq_N] + mixed.position_N + skipped_N
    token_N = torch.where(inside_N, from_prompt_N, from_answer_N)
    return mixed.add(ids_N=batch["ids_N"][token_N], mask_N=batch["mask_N"][token_N] & ~inside_N, prompt_len_S=prompt_S)
