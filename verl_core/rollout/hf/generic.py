"""The decoder for every other architecture: the model's own forward, with a cache that knows slots.

Slower than `llama_family.py`, but it asks little: attention layers, position_ids, and the transformers cache interface.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin

from verl_core.config.errors import UserError
from verl_core.rollout.hf.cache import Prefix, SlotCache

_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


class SlotLayer(CacheLayerMixin):
    """One layer's view of a SlotCache during one decode step: writes each row's key and value at the row's own
    position, hands attention the first `length` positions of the running slots."""

    def __init__(self, keys: Tensor, values: Tensor, position_B: Tensor, length: int):
        super().__init__()
        self.keys: Tensor = keys
        self.values: Tensor = values
        self.position_B, self.length = position_B, length
        self.row_B = torch.arange(len(position_B), device=position_B.device)
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the planes exist before the step."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        for plane, new in ((self.keys, key_states), (self.values, value_states)):
            plane[self.row_B, self.position_B] = new[:, :, 0]
        rows = len(self.row_B)
        return self.keys[:rows, : self.length].transpose(1, 2), self.values[:rows, : self.length].transpose(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length, 0

    def get_seq_length(self) -> int:
        return self.length - 1

    def get_max_length(self) -> int:
        return self.keys.shape[1]

    get_max_cache_shape = get_max_length  # the name before transformers 5.20


class GenericDecoder:
    """Drives an AutoModelForCausalLM. Two cache planes a layer: keys, values.

    Raises:
        UserError: the model has layers other than attention, or takes no position_ids.
    """

    capturable = False  # a model's own code may ask the device for a number

    def __init__(self, config: Any, device: torch.device, dtype: torch.dtype, max_model_len: int):
        self.config = config
        self.layer_types = getattr(config, "layer_types", None)
        self.window = getattr(config, "sliding_window", None)
        # A configuration that a trainer has used may name the trainer's attention function. None: the model's default,
        # which for soft-capped scores would be one that leaves the cap out.
        own = copy.deepcopy(config)
        own._attn_implementation = "eager" if getattr(config, "attn_logit_softcapping", None) else None
        model = AutoModelForCausalLM.from_config(own, dtype=dtype)
        self.model = model.to(device).eval().requires_grad_(False)
        accepted = inspect.signature(self.model.forward).parameters
        foreign = set(self.layer_types or ()) - _LAYER_TYPES
        if foreign or "position_ids" not in accepted:
            why = f"layers of type {', '.join(sorted(foreign))}" if foreign else "no position_ids in its forward"
            raise UserError(
                f"the hf engine cannot generate with model type {config.model_type!r}: {why}",
                "choose rollout.engine=vllm or sglang",
            )
        self.cache_argument = "cache" if "cache" in accepted else "past_key_values"
        self.parameters = dict(self.model.named_parameters())

    def load(self, weights: dict[str, Tensor]) -> None:
        """Points the model's parameters at these tensors."""
        for name, tensor in weights.items():
            self.parameters[name].data = tensor

    def addresses(self) -> tuple[int, ...]:
        """Where each weight lies."""
        return tuple(parameter.data_ptr() for parameter in self.parameters.values())

    def copies(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """None: the model's parameters are these tensors."""
        return {}

    def prefill(self, ids_PT: Tensor, length_P: Tensor) -> Prefix:
        P, T = ids_PT.shape
        cache = DynamicCache()  # without a configuration every layer keeps every position
        position_PT = torch.arange(T, device=ids_PT.device).expand(P, T)
        logits_PTV = self._forward(ids_PT, position_PT, None, cache)
        layers: Any = cache.layers
        planes = [plane.transpose(1, 2) for layer in layers for plane in (layer.keys, layer.values)]
        return Prefix(planes, logits_PTV[torch.arange(P, device=ids_PT.device), length_P - 1])

    def decode(self, ids_B: Tensor, position_B: Tensor, length: int, cache: SlotCache) -> Tensor:
        pairs = zip(cache.planes[::2], cache.planes[1::2], strict=True)
        layers = Cache(layers=[SlotLayer(keys, values, position_B, length) for keys, values in pairs])
        return self._forward(ids_B[:, None], position_B[:, None], self._masks(position_B, length), layers)[:, 0]

    def _forward(self, ids_BT: Tensor, position_BT: Tensor, mask: Any, cache: Cache) -> Tensor:
        step = {self.cache_argument: cache}
        return self.model(
            input_ids=ids_BT, position_ids=position_BT, attention_mask=mask, use_cache=True, **step
        ).logits

    def _masks(self, position_B: Tensor, length: int) -> Any:
        """The additive mask [B, 1, 1, L] of a model whose layers are alike, or one for each of its layer types."""
        back_BL = position_B[:, None] - torch.arange(length, device=position_B.device)
        full_BL = back_BL < 0
        if self.window is None:
            return self._additive(full_BL)
        sliding = self._additive(full_BL | (back_BL >= self.window))
        if self.layer_types is None:
            return sliding
        return {"full_attention": self._additive(full_BL), "sliding_attention": sliding}

    def _additive(self, hidden_BL: Tensor) -> Tensor:
        mask_BL = torch.zeros(hidden_BL.shape, dtype=self.model.dtype, device=hidden_BL.device)
        return mask_BL.masked_fill_(hidden_BL, torch.finfo(self.model.dtype).min)[:, None, None]
