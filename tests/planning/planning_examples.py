"""Configurations and shapes that several tests of plans use."""

from pathlib import Path
from typing import Any

from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.config.schema import RlxConfig
from verl_core.planning import gpus
from verl_core.planning.estimate import estimate
from verl_core.planning.plan import shapes_of
from verl_core.planning.result import PhasePlan, Plan

PROFILES = Path(__file__).resolve().parents[2] / "profiles"


def config_of(profile: str, *words: str) -> RlxConfig:
    return resolve(profile, words).config


def estimated(profile: str, *words: str, gpu: str = "H200") -> Plan:
    """The plan without the search for advice."""
    e = effective(config_of(profile, *words))
    return estimate(e, shapes_of(e), gpus.named(gpu))


def phase(plan: Plan, role: str, name: str) -> PhasePlan:
    return next(p for p in plan.phases if p.role == role and p.phase == name)


def total(plan: Plan, role: str, name: str) -> float:
    return phase(plan, role, name).memory.total


def tiny_config(**changes: Any) -> dict[str, Any]:
    """A config.json small enough to work by hand: 2 layers, hidden 8, 2 heads of 4, 1 key head, width 16, 32 tokens."""
    return {
        "model_type": "qwen2",
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 16,
        "vocab_size": 32,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        **changes,
    }
