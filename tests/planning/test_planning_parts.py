"""Plans of FSDP's ranks that have parts of layers, or some of the experts."""

import pytest

from tests.planning.planning_examples import estimated, phase
from verl_core.planning.result import PhasePlan

DENSE = ("grpo-7b-8gpu", "rollout.gpu_memory_utilization=0.3")
MIXTURE = (*DENSE, "model.path=Qwen/Qwen3-30B-A3B", "actor.fsdp_config.reduce_gradients=once")
HALF, D, LAYERS = 2, 3584, 28  # of Qwen2.5-7B


def update(profile: str, *words: str) -> PhasePlan:
    return phase(estimated(profile, *words), "actor", "update")


def tensor(size: int) -> str:
    return f"actor.fsdp_config.tensor_parallel_size={size}"


def test_parts_of_layers_take_less_and_send_rows():
    plain, parts = update(*DENSE), update(*DENSE, tensor(2))
    assert parts.memory.parameters == plain.memory.parameters  # 8 ranks share a copy, as before
    assert parts.memory.optimizer == plain.memory.optimizer
    assert parts.memory.activations < 0.75 * plain.memory.activations
    assert parts.memory.logits < 0.75 * plain.memory.logits
    assert parts.memory.communication < plain.memory.communication  # layers are gathered by halves


def test_whole_gradients_are_those_of_a_rank_s_part():
    once = "actor.fsdp_config.reduce_gradients=once"
    plain, parts = update(*DENSE, once), update(*DENSE, once, tensor(2))
    layers, root = 6_525_618_176, 2 * 152_064 * D + D
    assert plain.memory.gradients == pytest.approx(4 * (layers + root), rel=1e-3)
    assert parts.memory.gradients == pytest.approx(4 * (layers / 2 + root), rel=1e-3)


def test_rows_travel_around_attention_and_feed_forward():
    """Twice the ranks: the part of the traffic that rows are grows by (3/4) / (1/2), and other gathers shrink."""
    words = ("actor.fsdp_config.reshard_between_micro_batches=false", "model.enable_gradient_checkpointing=false")
    two, four = (update(*DENSE, *words, tensor(size)).moved["link"] for size in (2, 4))
    plain = update(*DENSE, *words).moved["link"]
    assert plain < two < four


def test_experts_are_not_gathered_where_they_are_dealt_out():
    plain = update(*MIXTURE)
    parts = update(*MIXTURE, "actor.fsdp_config.expert_parallel_size=8")
    assert parts.memory.parameters == plain.memory.parameters
    assert parts.memory.communication < plain.memory.communication  # although tokens travel
    assert parts.memory.gradients < plain.memory.gradients / 4
    assert estimated(*MIXTURE, "actor.fsdp_config.expert_parallel_size=8").pools[0].mesh[0].endswith("experts over 8")
