"""What of a decoder layer's activations waits for the backward pass, and where: all of it, little of it and the rest
computed again, or copies in host memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from verl_core.training.fsdp.shard import decoder_layers

LEAST_BYTES = 1 << 20  # smaller activations stay on the device
_MATRIX_PRODUCTS = {torch.ops.aten.mm.default: 1, torch.ops.aten.addmm.default: 2}  # and which argument the weight is
_ATTENTION = (
    "rlx::ragged_attention",
    "torch_attn::_varlen_attn",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
)


def recompute_layers(
    network: nn.Module, granularity: Literal["full", "selective"], config: Any, compiled: bool
) -> None:
    """Computes activations again in the backward pass. full: a layer keeps its input and, where layers are compiled,
    what attention returns (one more tensor of the input's size; to pick operators out costs time where the host runs
    them one by one). selective: attention and its projections are kept, and the wide feed-forward part and everything
    cheap is computed again.

    Inside the layer's forward, so that a compiled layer holds the recomputation and FSDP2 gathers around it.
    """
    context = None
    if compiled or granularity == "selective":
        width, joint = _attention_widths(config.get_text_config()) if granularity == "selective" else (0, 0)
        context = partial(create_selective_checkpoint_contexts, partial(_keeps, width, joint))
    for layer in decoder_layers(network):
        layer.forward = _recomputed(layer.forward, context, preserve_rng=_draws(layer))


def _recomputed(
    forward: Callable[..., Any], context: Callable[[], Any] | None, preserve_rng: bool
) -> Callable[..., Any]:
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": preserve_rng}
    if context is not None:
        options["context_fn"] = context

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(partial(forward, **kwargs), *args, **options)

    return recomputed


def _attention_widths(text: Any) -> tuple[int, int]:
    """The longest side of attention's matrices, and that of queries, keys and values as one (models/joint.py)."""
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    keys = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return max(text.hidden_size, text.num_attention_heads * head), (text.num_attention_heads + 2 * keys) * head


def _keeps(width: int, joint: int, ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Products with a matrix no larger than `width` on a side, or of the length `joint`, and attention. A feed-forward
    may be narrower than the joint matrix is long."""
    if op in _MATRIX_PRODUCTS:
        longest = max(args[_MATRIX_PRODUCTS[op]].shape)
        keeps = longest <= width or longest == joint
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE
    kept = op.name().split(".")[0] in _ATTENTION if hasattr(op, "name") else False
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _draws(layer: nn.Module) -> bool:
    """Whether the layer draws random numbers: some module has a dropout that is on."""
    return any((isinstance(m, nn.Dropout) and m.p > 0) or getattr(m, "attention_dropout", 0.0) for m in layer.modules())


def offload_layers(network: nn.Module, device: torch.device) -> None:
    """Keeps what layers save for the backward pass in host memory, from 1 MiB a tensor. Copies run beside the
    computation; the backward pass fetches a layer's while the one above it is differentiated."""
    host = HostActivations(device)
    for index, layer in enumerate(decoder_layers(network)):
        if (compiled := layer._compiled_call_impl) is not None:
            layer._compiled_call_impl = host.around(compiled, index)
        else:
            layer.forward = host.around(layer.forward, index)


@dataclass
class _Saved:
    layer: int
    host: Tensor
    device: Tensor | None = None  # there again, or on its way


class HostActivations:
    """What layers have saved, by layer, in host memory; `around` makes a layer's call save there."""

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.device = device
        self.saved: dict[int, list[_Saved]] = {}

    def around(self, call: Callable[..., Any], layer: int) -> Callable[..., Any]:
        def offloading(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return call(*args, **kwargs)
            self.saved[layer] = []
            with saved_tensors_hooks(partial(self._pack, layer), self._unpack):
                return call(*args, **kwargs)

        return offloading

    def _pack(self, layer: int, x: Tensor) -> Tensor | _Saved:
        if _is_weight(x) or x.nbytes < LEAST_BYTES or x.device.type != self.device.type:
            return x
        saved = _Saved(layer, torch.empty(x.shape, dtype=x.dtype, pin_memory=self.stream is not None))
        with self._beside():
            saved.host.copy_(x, non_blocking=True)
        if self.stream is not None:
            x.record_stream(self.stream)
        self.saved[layer].append(saved)
        return saved

    def _unpack(self, saved: Tensor | _Saved) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        self._fetch(saved.layer)
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        self._fetch(saved.layer - 1)  # runs while this layer is differentiated
        assert saved.device is not None
        return saved.device

    def _fetch(self, layer: int) -> None:
        for saved in self.saved.pop(layer, ()):
            with self._beside():
                saved.device = saved.host.to(self.device, non_blocking=True)
            if self.stream is not None:
                saved.device.record_stream(torch.cuda.current_stream())

    def _beside(self) -> Any:
        """The copying stream, once what is queued so far has run; nothing on a CPU."""
        if self.stream is None:
            return torch.no_grad()
        self.stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.stream)


def _is_weight(x: Tensor) -> bool:
    """Parameters and their views are no activations: FSDP2 has its own way with them."""
    origin = x if x._base is None else x._base
    return isinstance(origin, nn.Parameter) or (origin.is_leaf and origin.requires_grad)
