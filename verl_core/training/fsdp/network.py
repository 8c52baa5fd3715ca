"""A transformers model seen as a function from packed tokens to per-token quantities. It knows nothing of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from verl_core.algorithms.loss import Need
from verl_core.batch import Batch
from verl_core.models.pretrained import ValueModel
from verl_core.training.fsdp.packed_input import PackedInput
from verl_core.training.logprob import Stats, fused_token_stats, token_stats
from verl_core.training.logprob_wide import given_logp, kl_from, top_tokens

HALF = (torch.bfloat16, torch.float16)
OF_OWN_TOKEN = frozenset({Need.LOGP, Need.ENTROPY, Need.SUM_P_SQ})
TOP = frozenset({Need.TOPK_IDS, Need.TOPK_LOGP})
READS = {Need.GIVEN: "teacher_ids_NK", Need.FULL_KL: "ref_hidden_ND"}  # columns of a batch


class TokenNetwork(nn.Module):
    """Wraps a language model or a `ValueModel`. It is the root that is sharded, so that the output layer runs inside
    it."""

    def __init__(self, model: PreTrainedModel | ValueModel):
        super().__init__()
        self.model = model

    def forward(
        self,
        x: PackedInput,
        needs: frozenset[Need],
        temperature: float,
        k: int = 0,
        ref_head: Mapping[str, Tensor] | None = None,
    ) -> dict[Need, Tensor]:
        """The quantities needed of the K tokens, float32 where `Need` says nothing else. `k`: of the likeliest tokens;
        `ref_head`: parameters of the reference's output layer, for the KL."""
        body: nn.Module = self.model.body if isinstance(self.model, ValueModel) else self.model.base_model
        hidden_RD = body(
            input_ids=x.ids_1R, position_ids=x.position_1R, use_cache=False, packing=x.packing
        ).last_hidden_state[0]
        hidden_KD = hidden_RD.index_select(0, x.hidden_K)
        if isinstance(self.model, ValueModel):
            return {Need.VALUES: self.model.score(hidden_KD)[:, 0].float()}
        out: dict[Need, Tensor] = {}
        if needs & OF_OWN_TOKEN:
            stats = self._stats(hidden_KD, x.target_K, temperature, Need.ENTROPY in needs, Need.SUM_P_SQ in needs)
            named = {Need.LOGP: stats.logp_K, Need.ENTROPY: stats.entropy_K, Need.SUM_P_SQ: stats.square_K}
            out |= {need: value for need, value in named.items() if value is not None}
        if Need.HIDDEN in needs:
            out[Need.HIDDEN] = hidden_KD.detach()
        if needs & TOP:
            out[Need.TOPK_IDS], out[Need.TOPK_LOGP] = top_tokens(hidden_KD, self.head, self.vocabulary, temperature, k)
        if Need.GIVEN in needs:
            ids_KJ = x.columns[READS[Need.GIVEN]]
            out[Need.GIVEN] = given_logp(hidden_KD, ids_KJ, self.head, self.vocabulary, temperature)
        if Need.FULL_KL in needs:
            ref_hidden_KD = x.columns[READS[Need.FULL_KL]]
            reference = partial(self.head, parameters=ref_head)
            out[Need.FULL_KL] = kl_from(hidden_KD, ref_hidden_KD, self.head, reference, self.vocabulary, temperature)
        return out

    def column(self, need: Need, batch: Batch, k: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Zeros for a quantity of all the batch's tokens; hidden states, of type `dtype`, in host memory."""
        if need is Need.HIDDEN:
            return torch.zeros(batch.N, cast(Tensor, self.output_layer.weight).shape[-1], dtype=dtype)
        width = (k,) if need in TOP else batch[READS[need]].shape[1:] if need is Need.GIVEN else ()
        return torch.zeros(batch.N, *width, dtype=torch.int32 if need is Need.TOPK_IDS else None, device=device)

    @property
    def vocabulary(self) -> int:
        return self.model.config.get_text_config().vocab_size

    @property
    def output_layer(self) -> nn.Module:
        return cast(nn.Module, cast(PreTrainedModel, self.model).get_output_embeddings())

    def _stats(self, hidden_KD: Tensor, ids_K: Tensor, temperature: float, entropy: bool, square: bool) -> Stats:
        if hidden_KD.is_cuda and hidden_KD.dtype in HALF and (linear := self._plain_head()):
            weight_VD, scale = linear
            return fused_token_stats(hidden_KD, weight_VD, ids_K, scale / temperature, entropy, square)
        return token_stats(hidden_KD, ids_K, self.head, self.vocabulary, temperature, entropy, square)

    def _plain_head(self) -> tuple[Tensor, float] | None:
        """(weight_VD, scale) where logits are scale * hidden @ weight.T; None for an output layer that does more."""
        config, layer = self.model.config.get_text_config(), self.output_layer
        if type(layer) is not nn.Linear or layer.bias is not None or getattr(config, "final_logit_softcapping", None):
            return None
        scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
        return layer.weight, scale

    def head(self, hidden_KD: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Logits as the architecture's own forward makes them: output layer (with these parameters in place of its
        own), scale, soft cap."""
        config = self.model.config.get_text_config()
        layer = self.output_layer
        logits_KV: Tensor = functional_call(layer, dict(parameters), (hidden_KD,)) if parameters else layer(hidden_KD)
        if scale := getattr(config, "logit_scale", None):  # Cohere
            logits_KV = logits_KV * scale
        if divisor := getattr(config, "logits_scaling", None):  # Granite
            logits_KV = logits_KV / divisor
        if cap := getattr(config, "final_logit_softcapping", None):  # Gemma 2
            logits_KV = cap * torch.tanh(logits_KV / cap)
        return logits_KV


def on_tokens(out: Mapping[Need, Tensor], x: PackedInput, needs: frozenset[Need]) -> dict[Need, Tensor]:
    """Each quantity on the N axis, 0 where it is not defined; differentiable. Ranks that split the row each have all
    of it."""
    joined = x.split.joined if x.split else lambda value_N: value_N
    # in one order: ranks join them one after the other
    return {
        need: joined(out[need].new_zeros(x.N, *out[need].shape[1:]).index_copy(0, x.token_K, out[need]))
        for need in sorted(needs)
    }
