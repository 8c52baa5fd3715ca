"""Whatever is asked for: a plan, or an error that names each fault; never a traceback, never a number that is none."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.planning_examples import config_of
from verl_core import planning
from verl_core.config.errors import UserError
from verl_core.planning import gpus

SIZES = st.sampled_from([1, 2, 3, 4, 8, 16])
KEYS = {
    "model.path": st.sampled_from(["Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-30B-A3B", "google/gemma-3-1b-it", "builtin:tiny"]),
    "model.lora_rank": st.sampled_from([0, 16]),
    "model.enable_gradient_checkpointing": st.booleans(),
    "model.enable_activation_offload": st.booleans(),
    "algorithm.name": st.sampled_from(["grpo", "ppo", "dpo", "reward_model", "sft"]),
    "actor.strategy": st.sampled_from(["fsdp", "megatron"]),
    "actor.optim.optimizer": st.sampled_from(["adamw", "muon"]),
    "actor.ppo_micro_batch_size_per_gpu": SIZES,
    "actor.ulysses_sequence_parallel_size": SIZES,
    "actor.fsdp_config.fsdp_size": st.sampled_from([-1, 2, 4]),
    "actor.fsdp_config.tensor_parallel_size": SIZES,
    "actor.fsdp_config.expert_parallel_size": SIZES,
    "actor.fsdp_config.model_dtype": st.sampled_from(["float32", "bfloat16"]),
    "actor.fsdp_config.param_offload": st.booleans(),
    "actor.megatron.tensor_model_parallel_size": SIZES,
    "actor.megatron.pipeline_model_parallel_size": SIZES,
    "actor.megatron.virtual_pipeline_model_parallel_size": st.sampled_from(["null", 2]),
    "actor.megatron.context_parallel_size": SIZES,
    "actor.megatron.expert_model_parallel_size": SIZES,
    "actor.megatron.recompute_granularity": st.sampled_from(["null", "full", "selective"]),
    "rollout.engine": st.sampled_from(["hf", "vllm", "sglang"]),
    "rollout.tensor_model_parallel_size": SIZES,
}


GPUS = st.sampled_from(["H200", "24GB", "1GB"])


def chosen(names: dict[str, None]) -> st.SearchStrategy[dict[str, object]]:
    """Values for a few keys: with all of them at once nearly everything is an error."""
    return st.fixed_dictionaries({name: KEYS[name] for name in names})


# where the side pool is, a role must be on it
POOLS = st.one_of(
    st.fixed_dictionaries({"cluster.nproc": SIZES}),
    st.fixed_dictionaries(
        {
            "cluster.pools.main.gpus": SIZES,
            "cluster.pools.side.gpus": SIZES,
            "cluster.pools.side.nodes": SIZES,
            "rollout.pool": st.sampled_from(["main", "side"]),
            "ref.pool": st.just("side"),
            "actor.use_kl_loss": st.just("true"),
        }
    ),
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(KEYS)), st.none(), max_size=5).flatmap(chosen), POOLS, GPUS)
def test_a_plan_or_an_error(words, pools, gpu):
    words = words | pools
    try:
        plan = planning.plan(
            config_of("gsm8k-grpo", *(f"{key}={value}" for key, value in words.items())), gpus.named(gpu)
        )
    except UserError as error:
        assert error.message and error.hint
        return
    json.dumps(plan.values(), allow_nan=False)
    assert not (plan.verdict == "fits" and plan.advice)
