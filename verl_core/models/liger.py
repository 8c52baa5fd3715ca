"""Liger's Triton kernels (arXiv 2410.10989) for norms, rotary embeddings and gated MLPs, put into a model."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from verl_core.config.errors import UserError


def apply_liger(model: PreTrainedModel, device: torch.device) -> None:
    """Replaces the model's modules in place, and for this process the architecture's rotary function and classes. The
    output layer stays: `training.logprob` computes what a loss needs of it.

    Raises UserError on a device without Triton and for an architecture that Liger does not know.
    """
    if device.type != "cuda":
        raise UserError("model.use_liger=true needs a GPU: Liger's kernels are Triton's", "model.use_liger=false")
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN, _apply_liger_kernel_to_instance

    kind = model.config.model_type
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise UserError(f"model.use_liger=true: Liger has no kernels for model type {kind!r}", "model.use_liger=false")
    _apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)
