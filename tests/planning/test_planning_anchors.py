"""Estimates beside what was measured on an H200 (docs/planning.md): the right size, not the last digit."""

import pytest

from tests.planning.planning_examples import estimated, phase
from verl_core.planning import timing
from verl_core.planning.models import shape_of


@pytest.mark.parametrize(
    ("model", "recomputes", "measured"),
    [("0.5B", False, 0.388), ("1.5B", False, 0.497), ("1.5B", True, 0.388), ("3B", False, 0.527), ("3B", True, 0.411)],
)
def test_flop_utilization_of_training(model, recomputes, measured):
    """Packed 16k tokens of 2,048-token sequences; MFU counts 6 FLOP a parameter, so recomputation costs a quarter."""
    share = timing.utilization(shape_of(f"Qwen/Qwen2.5-{model}", {}))
    assert share * (3 / 4 if recomputes else 1) == pytest.approx(measured, rel=0.2)


def test_peak_of_training_under_fsdp2():
    """1.5B, float32 master weights, 16k tokens, without recomputation: 52.5 GB. The layers there were compiled, which
    keeps less of each layer; Liger's kernels come nearest."""
    words = "data.max_prompt_length=1024 data.max_response_length=1024 actor.ppo_micro_batch_size_per_gpu=8"
    plan = estimated(
        "gsm8k-grpo",
        "model.path=Qwen/Qwen2.5-1.5B",
        "model.enable_gradient_checkpointing=false",
        "model.use_liger=true",
        *words.split(),
    )
    used = phase(plan, "actor", "update").memory
    assert used.total - used.others - used.reserve == pytest.approx(52.5e9, rel=0.3)


def test_tokens_per_second_of_vllm():
    """0.5B, 256 sequences at once, 512 tokens each, graphs, through rlx: 83,900 tokens/s."""
    words = "data.train_batch_size=256 rollout.n=1 algorithm.name=ppo data.max_prompt_length=512"
    engine = estimated("gsm8k-ppo", *words.split()).engine
    assert engine is not None
    assert engine.tokens_per_second == pytest.approx(83_900, rel=0.25)


def test_weights_by_ipc():
    """0.5B to an engine on the same GPU: 0.15 to 0.19 s."""
    assert phase(estimated("gsm8k-ppo"), "actor", "sync").seconds == pytest.approx(0.17, rel=0.5)


@pytest.mark.parametrize(("model", "measured"), [("7B", 5.75), ("32B", 17.9)])
def test_weights_by_broadcast_over_the_network(model, measured):
    """One machine trains, one generates, H100: 5.5 to 6.0 s and 17.7 to 18.1 s published for whole updates."""
    pools = "cluster.pools.main.gpus=8 cluster.pools.gen.gpus=8 rollout.pool=gen rollout.tensor_model_parallel_size=4"
    plan = estimated("gsm8k-grpo", *pools.split(), f"model.path=Qwen/Qwen2.5-{model}", gpu="H100")
    assert phase(plan, "actor", "sync").seconds == pytest.approx(measured, rel=0.5)
