"""Advice makes a plan fit when it is taken."""

import time

import pytest

from tests.planning.planning_examples import config_of, estimated
from verl_core import planning
from verl_core.planning import gpus
from verl_core.planning.advice import applied
from verl_core.planning.plan import Plan

PPO = "gsm8k-ppo"
WIDE = ("actor.ppo_micro_batch_size_per_gpu=32", "critic.ppo_micro_batch_size_per_gpu=32")
WAITING = "actor.fsdp_config.reduce_gradients=once"


def planned(profile: str, *words: str, gpu: str) -> Plan:
    return planning.plan(config_of(profile, *words), gpus.named(gpu))


def test_ppo_on_a_small_gpu_is_told_to_take_fewer_sequences_at_once():
    plan = planned(PPO, "rollout.gpu_memory_utilization=0.3", *WIDE, gpu="24GB")
    assert plan.verdict != "fits"
    assert len(plan.advice) == 3
    assert "actor.ppo_micro_batch_size_per_gpu=" in plan.advice[0].words
    assert "critic.ppo_micro_batch_size_per_gpu=" in plan.advice[0].words


def test_ppo_fits_24_gb():
    assert planned(PPO, gpu="24GB").verdict != "does not fit"
    assert planned(PPO, "rollout.gpu_memory_utilization=0.35", gpu="24GB").verdict == "fits"


@pytest.mark.parametrize(
    ("profile", "words", "gpu"),
    [
        (PPO, WIDE, "24GB"),
        (PPO, (), "20GB"),
        (PPO, ("rollout.engine=hf",), "16GB"),
        ("gsm8k-grpo", ("model.path=Qwen/Qwen2.5-3B", "cluster.nproc=2"), "40GB"),
        ("gsm8k-grpo", ("model.path=Qwen/Qwen2.5-7B", "cluster.nproc=8", WAITING), "48GB"),
        ("256-gpu-grpo", ("rollout.gpu_memory_utilization=0.9",), "H200"),
        ("256-gpu-grpo", (), "H100"),
        ("math-grpo", ("model.enable_gradient_checkpointing=false",), "48GB"),
    ],
)
def test_advice_fits_when_it_is_taken(profile, words, gpu):
    plan = planned(profile, *words, gpu=gpu)
    assert plan.verdict != "fits"
    assert plan.advice
    config = config_of(profile, *words)
    for advice in plan.advice:
        again = planning.plan(applied(config, advice.settings), gpus.named(gpu))
        assert again.verdict == advice.verdict != "does not fit"
        assert again.step_seconds == pytest.approx(advice.step_seconds)
        by_words = planned(profile, *words, *advice.words.split(), gpu=gpu)  # as a person would take it
        assert by_words.verdict == advice.verdict


def test_the_cheapest_comes_first():
    plan = planned(PPO, gpu="22GB")
    costs = [round(advice.slowdown, 2) for advice in plan.advice]
    assert costs == sorted(costs)


def test_a_plan_that_fits_has_no_advice():
    plan = planned(PPO, gpu="H200")
    assert (plan.verdict, plan.advice) == ("fits", [])


def test_what_nothing_helps_has_no_advice():
    plan = planned("grpo-7b-8gpu", gpu="0.5GB")
    assert (plan.verdict, plan.advice) == ("does not fit", [])


def test_an_engine_without_room_for_a_sequence_does_not_fit():
    plan = estimated("gsm8k-grpo", "rollout.gpu_memory_utilization=0.01")
    assert plan.engine is not None and plan.engine.sequences_held == 0
    assert plan.verdict == "does not fit"
    assert any("does not start" in note for note in plan.notes)


def test_the_search_is_quick():
    start = time.perf_counter()
    planned("256-gpu-grpo", gpu="40GB")
    assert time.perf_counter() - start < 10
