"""A transformers model seen as a function from packed tokens to per-token quantities. It knows nothing of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from verl_core.algorithms.loss import Need
from verl_core.models.pretrained import ValueModel
from verl_core.training.fsdp.packed_input import PackedInput
from verl_core.training.logprob import Stats, fused_token_stats, token_stats

HALF = (torch.bfloat16, torch.float16)


class TokenNetwork(nn.Module):
    """Wraps a language model or a `ValueModel`. It is the root that is sharded, so that the output layer runs inside
    it."""

    def __init__(self, model: PreTrainedModel | ValueModel):
        super().__init__()
        self.model = model

    def forward(self, x: PackedInput, needs: frozenset[Need], temperature: float) -> dict[Need, Tensor]:
        """The quantities needed, each [K] float32."""
        body: nn.Module = self.model.body if isinstance(self.model, ValueModel) else self.model.base_model
        hidden_RD = body(
            input_ids=x.ids_1R, position_ids=x.position_1R, use_cache=False, packing=x.packing
        ).last_hidden_state[0]
        hidden_KD = hidden_RD.index_select(0, x.hidden_K)
        if isinstance(self.model, ValueModel):
            return {Need.VALUES: self.model.score(hidden_KD)[:, 0].float()}
        stats = self._stats(hidden_KD, x.target_K, temperature, Need.ENTROPY in needs, Need.SUM_P_SQ in needs)
        named = {Need.LOGP: stats.logp_K, Need.ENTROPY: stats.entropy_K, Need.SUM_P_SQ: stats.square_K}
        return {need: value for need, value in named.items() if value is not None}

    def _stats(self, hidden_KD: Tensor, ids_K: Tensor, temperature: float, entropy: bool, square: bool) -> Stats:
        if hidden_KD.is_cuda and hidden_KD.dtype in HALF and (linear := self._plain_head()):
            weight_VD, scale = linear
            return fused_token_stats(hidden_KD, weight_VD, ids_K, scale / temperature, entropy, square)
        vocabulary = self.model.config.get_text_config().vocab_size
        return token_stats(hidden_KD, ids_K, self.head, vocabulary, temperature, entropy, square)

    def _plain_head(self) -> tuple[Tensor, float] | None:
        """(weight_VD, scale) where logits are scale * hidden @ weight.T; None for an output layer that does more."""
        model = cast(PreTrainedModel, self.model)
        config, layer = model.config.get_text_config(), model.get_output_embeddings()
        if type(layer) is not nn.Linear or layer.bias is not None or getattr(config, "final_logit_softcapping", None):
            return None
        scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
        return layer.weight, scale

    def head(self, hidden_KD: Tensor) -> Tensor:
        """Logits as the architecture's own forward makes them: output layer, scale, soft cap."""
        model = cast(PreTrainedModel, self.model)
        config = model.config.get_text_config()
        logits_KV: Tensor = model.get_output_embeddings()(hidden_KD)
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
    return {need: joined(out[need].new_zeros(x.N).index_copy(0, x.token_K, out[need])) for need in sorted(needs)}
