"""What must hold whatever the sizes are: more shards never need more memory, larger micro-batches never less, ..."""

from dataclasses import asdict

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.planning_examples import estimated, total
from verl_core.planning.result import Plan

quick = settings(max_examples=12)
MODELS = st.sampled_from(["Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-4B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"])
TRAINING = ("update", "log-prob", "checkpoint")
BASE = ("data.train_batch_size=512", "actor.ppo_mini_batch_size=512", "rollout.engine=vllm", "actor.use_kl_loss=false")


def plan(model: str, *words: str) -> Plan:
    return estimated("gsm8k-grpo", f"model.path={model}", *BASE, *words)


def no_more(less: Plan, more: Plan, phases: tuple[str, ...] = TRAINING) -> None:
    for name in phases:
        assert total(less, "actor", name) <= total(more, "actor", name) * (1 + 1e-9), name


@quick
@given(MODELS, st.sampled_from([2, 4, 8]), st.integers(1, 8))
def test_more_shards_never_need_more(model, gpus, micro):
    words = f"actor.ppo_micro_batch_size_per_gpu={micro}"
    no_more(plan(model, words, f"cluster.nproc={2 * gpus}"), plan(model, words, f"cluster.nproc={gpus}"))


@quick
@given(MODELS, st.integers(1, 16), st.integers(1, 16), st.sampled_from([1, 4]))
def test_larger_micro_batches_never_need_less(model, one, other, gpus):
    small, large = sorted((one, other))
    words = [f"cluster.nproc={gpus}", "rollout.log_prob_micro_batch_size_per_gpu=null"]
    plans = [plan(model, f"actor.ppo_micro_batch_size_per_gpu={size}", *words) for size in (small, large)]
    if gpus == 1:  # with shards the last large micro-batch may be the only one, whose gradients need not wait
        no_more(*plans)
    else:
        no_more(*plans, phases=("log-prob",))


@quick
@given(MODELS, st.sampled_from(["param_offload", "optimizer_offload"]))
def test_offload_never_needs_more_on_the_gpu(model, what):
    without = plan(model)
    offloaded = plan(model, f"actor.fsdp_config.{what}=true")
    no_more(offloaded, without)
    assert total(offloaded, "rollout", "rollout") < total(without, "rollout", "rollout")
    assert offloaded.pools[0].host > without.pools[0].host
    assert offloaded.step_seconds > without.step_seconds


@quick
@given(MODELS, st.integers(1, 8))
def test_recomputation_never_needs_more_and_takes_longer(model, micro):
    words = f"actor.ppo_micro_batch_size_per_gpu={micro}"
    with_it, without = plan(model, words), plan(model, words, "model.enable_gradient_checkpointing=false")
    no_more(with_it, without, ("update",))
    assert with_it.step_seconds > without.step_seconds


@quick
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_sequence_parallelism_never_needs_more(sp, micro):
    words = [f"actor.ppo_max_token_len_per_gpu={2048 * micro}", "actor.ppo_micro_batch_size_per_gpu=null"]
    words += ["cluster.nproc=8", "rollout.log_prob_micro_batch_size_per_gpu=8"]
    one = plan("meta-llama/Llama-3.1-8B", *words, f"actor.ulysses_sequence_parallel_size={sp}")
    two = plan("meta-llama/Llama-3.1-8B", *words, f"actor.ulysses_sequence_parallel_size={2 * sp}")
    assert phase_activations(two) <= phase_activations(one) * (1 + 1e-9)


def phase_activations(of: Plan) -> float:
    return next(p.memory.activations for p in of.phases if p.phase == "update")


@quick
@given(MODELS, st.floats(0.15, 0.9), st.floats(0.15, 0.9))
def test_a_larger_share_holds_no_fewer_sequences(model, one, other):
    small, large = sorted((one, other))
    held = []
    for share in (small, large):
        engine = plan(model, f"rollout.gpu_memory_utilization={share}").engine
        assert engine is not None
        held.append(engine.sequences_held)
    assert held[0] <= held[1]


@quick
@given(MODELS, st.sampled_from(["H200", "24GB", "A100", "L4"]), st.sampled_from([1, 2, 8]))
def test_components_add_up_and_nothing_is_negative(model, gpu, gpus):
    for phase in estimated("gsm8k-grpo", f"model.path={model}", f"cluster.nproc={gpus}", gpu=gpu).phases:
        parts = asdict(phase.memory)
        assert phase.memory.total == sum(parts.values())
        assert all(part >= 0 for part in parts.values())
        assert phase.seconds > 0


@quick
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_megatron_state_shrinks_with_every_parallel_size(tp, pp):
    words = ["actor.strategy=megatron", "cluster.nproc=32"]

    def state(tp: int, pp: int) -> float:
        sizes = [
            f"actor.megatron.tensor_model_parallel_size={tp}",
            f"actor.megatron.pipeline_model_parallel_size={pp}",
        ]
        of = plan("meta-llama/Llama-3.1-8B", *words, *sizes)
        return next(p.memory.parameters for p in of.phases if p.phase == "update")

    assert state(2 * tp, pp) < state(tp, pp)
    assert state(tp, 2 * pp) < state(tp, pp)
