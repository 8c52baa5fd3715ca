"""Every profile plans; pools are planned apart; the GPU is the one that was meant."""

import json
import stat
import time

import pytest

from tests.planning.planning_examples import PROFILES, config_of, estimated, phase
from verl_core import planning
from verl_core.config.errors import UserError
from verl_core.planning import gpus
from verl_core.planning.plan import gpu_for

NAMES = sorted(path.stem for path in PROFILES.glob("*.yaml"))


@pytest.mark.parametrize("profile", NAMES)
def test_every_profile_plans(profile):
    plan = planning.plan(config_of(profile), gpus.named("H200"))
    assert plan.tightest.memory.total > 0 and plan.step_seconds > 0 and plan.checkpoint > 0
    assert json.loads(json.dumps(plan.values(), allow_nan=False))["verdict"] == plan.verdict


def test_256_ranks_are_planned_in_a_moment():
    start = time.perf_counter()
    plan = planning.plan(config_of("256-gpu-grpo"), gpus.named("H200"))
    assert time.perf_counter() - start < 10
    assert [r["rank"] for r in plan.pools[0].ranks] == list(range(256))


def test_phases_of_ppo_in_their_order():
    phases = [(p.role, p.phase) for p in estimated("gsm8k-ppo").phases]
    assert phases == [
        ("rollout", "rollout"),
        ("actor", "log-prob"),
        ("critic", "values"),
        ("actor", "update"),
        ("critic", "update"),
        ("actor", "sync"),
        ("actor", "checkpoint"),
        ("critic", "checkpoint"),
    ]


def test_a_run_from_files_neither_generates_nor_pushes_weights():
    phases = [(p.role, p.phase) for p in estimated("dpo-pairs").phases]
    assert phases == [("ref", "log-prob"), ("actor", "update"), ("actor", "checkpoint")]


def test_roles_on_pools_of_their_own_leave_each_other_alone():
    pools = ["cluster.pools.main.gpus=1", "cluster.pools.side.gpus=1", "cluster.pools.gen.gpus=2"]
    together = estimated("gsm8k-ppo")
    apart = estimated("gsm8k-ppo", *pools, "critic.pool=side", "rollout.pool=gen")
    assert {p.name: {q.role for q in apart.phases if q.pool == p.name} for p in apart.pools} == {
        "main": {"actor"},
        "side": {"critic"},
        "gen": {"rollout"},
    }
    assert phase(apart, "actor", "update").memory.others == 0 < phase(together, "actor", "update").memory.others
    assert phase(apart, "rollout", "rollout").memory.others == 0
    assert phase(apart, "actor", "sync").moved["network"] > 0  # three machines: weights are broadcast
    updates = phase(apart, "actor", "update").seconds + phase(apart, "critic", "update").seconds
    assert apart.step_seconds < updates + sum(
        p.seconds for p in apart.phases if p.phase not in ("update", "checkpoint")
    )


def test_a_reference_on_its_own_pool_holds_parameters_only():
    words = ["cluster.pools.main.gpus=1", "cluster.pools.side.gpus=1", "ref.pool=side"]
    apart = phase(estimated("gsm8k-grpo", *words), "ref", "log-prob").memory
    assert apart.optimizer == apart.gradients == apart.others == 0
    inside = phase(estimated("gsm8k-grpo"), "ref", "log-prob")
    assert inside.memory.optimizer > 0  # the actor's, whose weights it borrows
    assert inside.moved["pcie"] == 4 * inside.memory.parameters * 4 / 6  # not the bf16 copies beside them


def test_old_log_probs_of_the_float32_engine_need_no_pass():
    assert ("actor", "log-prob") not in [(p.role, p.phase) for p in estimated("smoke").phases]
    words = ("rollout.old_log_prob=recompute", "actor.fsdp_config.dtype=float32", "rollout.dtype=float32")
    assert ("actor", "log-prob") in [(p.role, p.phase) for p in estimated("smoke", *words).phases]


@pytest.mark.parametrize(("transport", "way"), [("broadcast", "network"), ("delta", "network"), ("disk", "disk")])
def test_weights_take_the_way_they_are_told(transport, way):
    pools = ["cluster.pools.main.gpus=1", "cluster.pools.gen.gpus=1", "rollout.pool=gen"]
    keys = [f"weights.type={transport}", *(["weights.folder=weights"] if transport == "disk" else [])]
    moved = phase(estimated("gsm8k-grpo", *pools, *keys), "actor", "sync").moved
    whole = 2 * 494_032_768
    assert moved[way] == pytest.approx({"broadcast": whole, "delta": 0.03 * whole, "disk": 2 * whole}[transport])


def test_checkpoints_hold_weights_and_two_moments_of_every_trained_role():
    plan = estimated("gsm8k-ppo")
    assert plan.checkpoint == 12 * (494_032_768 + 494_032_768 + 896)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("h200", "H200"),
        ("A100", "A100-80GB"),
        ("a100-40gb", "A100-40GB"),
        ("RTX 4090", "RTX4090"),
        ("4090", "RTX4090"),
        ("A10G", "A10"),
    ],
)
def test_cards_by_name(name, known):
    assert gpus.named(name) is gpus.GPUS[known]


def test_cards_by_size():
    assert gpus.named("24GB").memory == 24e9
    assert gpus.named("24 GiB").memory == 24 * 2**30


def test_a_misspelt_card_lists_the_choices():
    with pytest.raises(UserError, match="did you mean H200") as caught:
        gpus.named("H20O0")
    assert "24GB" in caught.value.hint and "A100-80GB" in caught.value.hint


def test_a_number_without_a_unit_is_taken_for_a_size():
    with pytest.raises(UserError, match="--gpu 80: no such card; did you mean 80GB"):
        gpus.named("80")


@pytest.mark.parametrize(
    ("line", "name", "flops"),
    [
        ("NVIDIA H200, 143771", "NVIDIA H200", gpus.GPUS["H200"].flops),
        ("NVIDIA A100-SXM4-40GB, 40960", "NVIDIA A100-SXM4-40GB", gpus.GPUS["A100-40GB"].flops),
        ("NVIDIA GeForce RTX 4090, 24564", "NVIDIA GeForce RTX 4090", gpus.GPUS["RTX4090"].flops),
        ("Some Other Card, 16384", "Some Other Card", gpus.GPUS["A10"].flops),
    ],
)
def test_the_gpu_of_this_machine(tmp_path, monkeypatch, line, name, flops):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{line}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    gpu, reason = gpu_for(config_of("gsm8k-grpo"), None)
    assert (gpu.name, gpu.flops, reason) == (name, flops, "this machine's")
    assert gpu.memory == int(line.split(", ")[1]) * 2**20


def test_without_a_gpu_it_is_an_h200_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    gpu, reason = gpu_for(config_of("gsm8k-grpo"), None)
    assert gpu.name == "H200" and "no NVIDIA GPU" in reason
    assert gpu_for(config_of("smoke"), None)[0].is_cpu


def test_a_reward_model_on_pairs_is_one_role_that_only_updates():
    planned = estimated("rm-pairs")
    assert [(p.role, p.phase) for p in planned.phases] == [("reward_model", "update"), ("reward_model", "checkpoint")]
