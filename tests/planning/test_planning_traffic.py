"""Which way bytes take follows from where the ranks of a group lie."""

import pytest

from tests.planning.planning_examples import estimated, phase

MOE = ("256-gpu-grpo", "model.override_config.num_hidden_layers=8", "data.train_batch_size=128")
HALF = 2  # bytes of a bfloat16


def megatron(nodes: int, **sizes: int) -> list[str]:
    words = [f"actor.megatron.{key}_parallel_size={size}" for key, size in sizes.items()]
    return [*words, f"cluster.nnodes={nodes}", "actor.megatron.param_offload=false"]


def update(*words: str) -> dict[str, float]:
    return phase(estimated(*words), "actor", "update").moved


def test_experts_on_the_ranks_of_a_machine_do_not_use_the_network():
    """Experts are laid out beside each other whatever the tensor-parallel size: 8 of them are 8 neighbouring ranks."""
    sizes = {"tensor_model": 4, "pipeline_model": 1, "expert_model": 8}
    inside = update(*MOE, *megatron(2, **sizes))
    outside = update(*MOE, *megatron(2, **sizes | {"expert_model": 16}))
    tokens = 128 * 16 * (2048 + 8192) / 4  # of a data-parallel rank's share in all mini-batches: 2 x 8 ranks / 4
    sent = 2 * 8 * HALF * 4096 * 8 * 3 / 4  # there and back, 8 experts, 8 layers, 3 passes, a quarter of the tokens
    assert outside["network"] - inside["network"] > 0.9 * tokens * sent * 15 / 16
    assert inside["link"] > 0.9 * tokens * sent * 7 / 8


@pytest.mark.parametrize(("nodes", "gpus", "way"), [(1, 8, "link"), (2, 8, "network"), (2, 4, "network")])
def test_neighbouring_stages_on_two_machines_use_the_network(nodes, gpus, way):
    words = ["actor.strategy=megatron", "rollout.tensor_model_parallel_size=1", f"cluster.n_gpus_per_node={gpus}"]
    words += megatron(nodes, tensor_model=gpus if nodes > 1 else gpus // 2, pipeline_model=2)
    model = ["model.override_config={num_attention_heads: 8, num_key_value_heads: 8, head_dim: 128}"]
    moved = phase(estimated("gsm8k-grpo", *words, *model), "actor", "log-prob").moved
    assert moved.get(way, 0) > 0
    assert ("network" in moved) == (way == "network")


def test_replicas_on_one_machine_reduce_over_its_links():
    moved = update("gsm8k-grpo", "cluster.n_gpus_per_node=8", "actor.fsdp_config.fsdp_size=4")
    assert set(moved) <= {"link", "pcie"}
    apart = update("gsm8k-grpo", "cluster.nnodes=2", "cluster.n_gpus_per_node=4", "actor.fsdp_config.fsdp_size=4")
    updates = 4  # 256 prompts in mini-batches of 64
    assert apart["network"] == pytest.approx(updates * 2 * 4 * 494_032_768 / 4)
