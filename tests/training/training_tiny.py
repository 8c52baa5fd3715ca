"""A tiny Qwen2 folder, a ragged batch and an engine on them, for the training tests."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from verl_core.algorithms.loss import Metric, Need, Totals
from verl_core.batch import Batch
from verl_core.config.schema import ActorConfig, CriticConfig, FsdpConfig, ModelConfig, OptimConfig
from verl_core.platforms import current
from verl_core.training.fsdp import FsdpEngine
from verl_core.training.protocol import MicroBatching

VOCAB = 61
# A large epsilon: plain Adam's first step is lr times the sign of the gradient, which turns rounding into whole steps.
SMOOTH = OptimConfig(lr=1e-2, eps=1e-3)


def write_model(folder: Path, seed: int = 0, **override) -> Path:
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    rest = {
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    Qwen2ForCausalLM(Qwen2Config(**{**shape, **rest, **override})).save_pretrained(folder)
    return folder


def make_batch(lengths=(9, 4, 12, 2, 7, 5), seed: int = 0) -> Batch:
    """The last half of each sequence is produced."""
    generator = torch.Generator().manual_seed(seed)
    length_S = torch.tensor(lengths)
    batch = Batch(length_S, torch.arange(len(lengths)), {})
    half_N = torch.repeat_interleave(length_S // 2, length_S)
    return batch.add(
        ids_N=torch.randint(0, VOCAB, (batch.N,), generator=generator),
        mask_N=batch.position_N >= half_N,
        target_N=torch.randn(batch.N, generator=generator),
    )


def totals(batch: Batch) -> Totals:
    return Totals(tokens=int(batch["mask_N"].sum()), sequences=batch.S, groups=batch.P)


class NllEntropy:
    """Mean over produced tokens of -logp - 0.1 entropy: gradients through both quantities."""

    needs = frozenset({Need.LOGP, Need.ENTROPY})
    temperature = 0.7

    def __call__(self, out, batch, totals):
        mask_N = batch["mask_N"]
        share = -((out[Need.LOGP] + 0.1 * out[Need.ENTROPY]) * mask_N).sum() / totals.tokens
        longest = Metric(batch.length_S.max(), how="max")
        return share, {"logp": Metric(out[Need.LOGP].detach().sum(), mask_N.sum()), "longest": longest}


class Squared:
    """Mean squared distance of values to target_N."""

    needs = frozenset({Need.VALUES})
    temperature = 1.0

    def __call__(self, out, batch, totals):
        error_N = (out[Need.VALUES] - batch["target_N"]).square() * batch["mask_N"]
        return error_N.sum() / totals.tokens, {}


def make_engine(folder: Path, role: str = "actor", micro=None, optim=None, fsdp=None, **options) -> FsdpEngine:
    cls = CriticConfig if role == "critic" else ActorConfig
    model = {"enable_gradient_checkpointing": options.pop("checkpointing", False), **options.pop("model", {})}
    settings = cls(optim=optim or SMOOTH, fsdp_config=fsdp or FsdpConfig(), grad_clip=0.5)
    return FsdpEngine(
        ModelConfig(path=str(folder), **model),
        settings,
        role=role,
        platform=options.pop("platform", current("cpu")),
        micro=micro or MicroBatching(sequences=64),
        **options,
    )


def weights(engine: FsdpEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.named_weights()}
