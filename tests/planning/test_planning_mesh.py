"""Meshes: who is where, how layers are dealt to stages, and what does not divide."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.planning_examples import config_of, estimated
from verl_core import planning
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.planning import gpus
from verl_core.planning.mesh import Mesh, stage_sizes
from verl_core.planning.plan import shapes_of
from verl_core.planning.system import System, system_of


def system_of_profile(profile: str) -> System:
    e = effective(config_of(profile))
    return system_of(e, shapes_of(e), gpus.named("H200"))


def test_tensor_ranks_are_neighbours_and_stages_far_apart():
    mesh = Mesh(ranks=16, per_node=8, tp=2, cp=2, pp=2, ep=2, megatron=True)
    places = [(c.tp, c.cp, c.dp, c.pp) for c in mesh.coordinates]
    assert len(set(places)) == 16
    assert places[1] == (1, 0, 0, 0)
    assert places[2] == (0, 1, 0, 0)
    assert places[4] == (0, 0, 1, 0)
    assert places[8] == (0, 0, 0, 1)
    assert [c.ep for c in mesh.coordinates[:4]] == [0, 1, 0, 1]
    assert (mesh.dp, mesh.optimizer_ranks, mesh.expert_optimizer_ranks) == (2, 4, 4)


def test_uneven_layers_spare_the_ends():
    assert stage_sizes(94, 8) == [11, 12, 12, 12, 12, 12, 12, 11]
    assert stage_sizes(64, 8) == [8] * 8
    assert stage_sizes(28, 1) == [28]
    assert stage_sizes(7, 4) == [1, 3, 2, 1]  # 9 slots: two each, one over for the middle
    assert stage_sizes(5, 4) == [1, 2, 1, 1]


@given(st.integers(1, 200), st.integers(1, 32))
def test_every_layer_has_a_stage(layers, stages):
    if layers >= stages:
        sizes = stage_sizes(layers, stages)
        assert sum(sizes) == layers and len(sizes) == stages and min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 2


def test_first_stage_has_the_embedding_and_last_the_output_layer():
    mesh = Mesh(ranks=8, per_node=8, pp=4, megatron=True)
    role = replace(system_of_profile("gsm8k-grpo").actor, mesh=mesh)
    shape = role.shape  # 24 layers, tied: the last stage has a copy of the embedding for its output layer
    layers = 6 * shape.layer_params(0)
    held = [role.held(stage).all for stage in mesh.stages(shape)]
    assert held == [
        layers + shape.embedding_params,
        layers,
        layers,
        layers + shape.hidden + shape.embedding_params,
    ]


def test_the_tightest_rank_is_named_with_its_place():
    plan = estimated("256-gpu-grpo")
    ranks = plan.pools[0].ranks
    assert len({(r["tp"], r["dp"], r["pp"]) for r in ranks}) == len(ranks) == 256
    tightest = plan.pools[0].tightest
    assert tightest is not None
    assert ranks[tightest.rank]["bytes"] == max(r["bytes"] for r in ranks)
    assert str(tightest).startswith(f"rank {tightest.rank} (tp ")


def test_a_pipeline_of_equal_layers_is_tightest_where_more_is_held():
    words = ["actor.strategy=megatron", "actor.megatron.pipeline_model_parallel_size=4", "cluster.n_gpus_per_node=4"]
    words += ["rollout.tensor_model_parallel_size=1", "rollout.gpu_memory_utilization=0.2"]
    plan = estimated("grpo-7b-8gpu", *words)
    tightest = plan.pools[0].tightest
    assert tightest is not None and tightest.pp == 0  # the embedding, and four micro-batches on their way
    stages = {r["pp"]: r["bytes"] for r in plan.pools[0].ranks}
    assert stages[0] > stages[1] > stages[2]
    assert stages[0] > stages[3]


FAULTS = {
    "actor.ulysses_sequence_parallel_size=8 cluster.n_gpus_per_node=8": "28 attention heads",
    "rollout.tensor_model_parallel_size=8 cluster.n_gpus_per_node=8": "28 attention heads",
    "rollout.tensor_model_parallel_size=7 cluster.n_gpus_per_node=7": "152064 tokens, filled up to 152064",
    "actor.strategy=megatron actor.megatron.tensor_model_parallel_size=8": "28 attention heads",
    "actor.strategy=megatron actor.megatron.pipeline_model_parallel_size=32 cluster.nnodes=4": "28 layers",
    "actor.strategy=megatron actor.megatron.pipeline_model_parallel_size=4 "
    "actor.megatron.virtual_pipeline_model_parallel_size=3": "4 x virtual_pipeline_model_parallel_size=3 = 12",
    "actor.strategy=megatron actor.megatron.virtual_pipeline_model_parallel_size=2": "pipeline_model_parallel_size > 1",
    "actor.strategy=megatron actor.megatron.expert_model_parallel_size=2": "has no experts; set it to 1",
    "actor.strategy=megatron actor.megatron.expert_tensor_parallel_size=2": "has no experts; set it to null",
    "data.max_response_length=200000 actor.ppo_max_token_len_per_gpu=300000": "201024 tokens, but the model takes",
    "cluster.pools.side.gpus=3 cluster.pools.main.gpus=8 cluster.n_gpus_per_node=1 ref.pool=side "
    "actor.fsdp_config.fsdp_size=4": "fsdp_size = 4 does not divide the 3 ranks of ref.pool 'side'",
    "model.lora_rank=8 model.target_modules=[lm_head]": "no layer has a matrix named 'lm_head'",
    "model.lora_rank=8 model.target_modules=[q_proj,layers.0.mlp.up,mlp.up_proj]": "no layer has a matrix named "
    "'layers.0.mlp.up'",
    "actor.fsdp_config.tensor_parallel_size=8": "does not divide the model's 4 key-value heads",
    "actor.fsdp_config.expert_parallel_size=8": "expert_parallel_size=8: the model has no experts; set it to 1",
}


@pytest.mark.parametrize("words", FAULTS)
def test_what_does_not_divide_is_refused_with_its_numbers(words):
    with pytest.raises(UserError) as caught:
        planning.plan(config_of("grpo-7b-8gpu", *words.split()), gpus.named("H100"))
    assert FAULTS[words] in caught.value.message


def test_experts_are_divided_too():
    words = ["actor.megatron.expert_model_parallel_size=3", "cluster.nnodes=12", "actor.ppo_mini_batch_size=512"]
    words += ["actor.megatron.tensor_model_parallel_size=4", "actor.megatron.pipeline_model_parallel_size=4"]
    with pytest.raises(UserError, match="does not divide the model's 128 experts"):
        planning.plan(config_of("256-gpu-grpo", *words), gpus.named("H200"))


def test_all_faults_come_at_once():
    words = ["actor.strategy=megatron", "actor.megatron.tensor_model_parallel_size=8"]
    words += ["actor.megatron.expert_tensor_parallel_size=2", "rollout.tensor_model_parallel_size=8"]
    with pytest.raises(UserError) as caught:
        planning.plan(config_of("grpo-7b-8gpu", *words), gpus.named("H100"))
    assert len(caught.value.message.splitlines()) == 3
