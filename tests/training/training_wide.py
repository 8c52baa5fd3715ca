"""Losses on what the engine gives beyond one log-prob a token, the columns they read, and the same in float64 by plain
transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.training.training_ranks import engine_of, whole
from tests.training.training_tiny import VOCAB, NllEntropy, totals
from verl_core.algorithms.loss import Need
from verl_core.batch import Batch

TEMPERATURE = 0.7


class ForwardKl:
    """Cross entropy of a teacher's probabilities for the tokens it named, mean over produced tokens."""

    needs = frozenset({Need.GIVEN})
    temperature = TEMPERATURE

    def __call__(self, out, batch, totals):
        return -(batch["teacher_p_NK"] * out[Need.GIVEN]).sum() / totals.tokens, {}


class FullKl:
    """KL from the reference, weighed unevenly, with some of the log-prob."""

    needs = frozenset({Need.FULL_KL, Need.LOGP})
    temperature = TEMPERATURE

    def __call__(self, out, batch, totals):
        weight_N = batch["target_N"] * batch["mask_N"]
        return (weight_N * (out[Need.FULL_KL] + 0.1 * out[Need.LOGP])).sum() / totals.tokens, {}


def add_teacher(batch: Batch, k: int = 5) -> Batch:
    """Adds teacher_ids_NK (different ones for each token) and teacher_p_NK."""
    draw = torch.Generator().manual_seed(1)
    ids_NK = torch.rand(batch.N, VOCAB, generator=draw).topk(k).indices.int()
    return batch.add(teacher_ids_NK=ids_NK, teacher_p_NK=torch.rand(batch.N, k, generator=draw))


def log_probs(folder: Path, batch: Batch, weights: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
    """[N, V] float64, with `weights` in place of the folder's, by name: rows as `Need` speaks of them, those of a
    sequence's first token without meaning."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    model.load_state_dict(weights or {}, strict=False)
    rows = []
    with torch.no_grad():
        for ids in batch["ids_N"].split(batch.length_S.tolist()):
            rows.append((model(ids[None]).logits[0] / TEMPERATURE).log_softmax(-1).roll(1, 0))
    return torch.cat(rows)


def slow_kl(p_NV: torch.Tensor, q_NV: torch.Tensor, batch: Batch) -> torch.Tensor:
    """KL(p, q) of log-probs, 0 outside the mask. Float32."""
    return ((p_NV.exp() * (p_NV - q_NV)).sum(-1) * batch["mask_N"]).float()


def train_beside_reference(share: list[int], batch: Batch, folder: Path, loss: Any, options: dict) -> dict[str, Any]:
    """On this rank's share: a step away from the reference, one with `loss`, and what a forward then gives."""
    engine, mine = engine_of(folder, **options), batch.select(share)
    engine.snapshot("ref")
    engine.step(mine, NllEntropy(), totals(batch))
    metrics = engine.step(mine, loss, totals(batch))
    moments = {name: whole(x) for name, x in engine.state().optimizer.items() if name.startswith("exp_avg/")}
    wanted = frozenset({Need.TOPK_IDS, Need.TOPK_LOGP, Need.GIVEN, Need.FULL_KL, Need.HIDDEN})
    return {"metrics": metrics, "moments": moments, "out": engine.forward(mine, wanted, TEMPERATURE, k=3)}
