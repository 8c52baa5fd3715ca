"""What a step costs: FLOPs against the peak of the hardware, and memory by phase from the ranks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.controller.controller_tiny import answers, one_rank, tiny_config, tiny_model
from verl_core.controller.accounting import Accounts, costs_of
from verl_core.controller.flows import PolicyFlow
from verl_core.controller.phases import Phases
from verl_core.controller.roles import Role
from verl_core.platforms import Memory, Platform
from verl_core.tracking.registry import check_known
from verl_core.tracking.timing import Timer

GIB = 2**30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def one_step(config, model: Path, hardware: str | None = None) -> tuple[dict, dict]:
    """Metrics of an accounted step on a real rank, and the FLOPs asked for by phase. `hardware`: what the rank is to
    say it runs on."""
    with one_rank(config, model) as group:
        actor, critic = Role("actor", group), Role("critic", group)
        accounts = Accounts([actor, critic], {"main": group})
        for role in accounts.roles:
            role.costs = costs_of(config, role.name, str(model))
        if hardware:
            group.worker.hardware = lambda: hardware
        flow, batch, timer = PolicyFlow(config, {"actor": actor, "critic": critic}), answers(4, 4), Timer()

        async def step() -> dict:
            await accounts.start()
            await flow.prepare(batch, timer)
            flow.advantage(batch)
            await flow.update(batch, 1, timer)
            asked.update(actor.asked | critic.asked)
            timing = timer.end_step(batch.N, batch.N)
            found = timing | await accounts.memory()
            return found | accounts.utilisation(timing) | {"empty": accounts.utilisation(timing)}

        asked: dict = {}
        return asyncio.run(step()), asked


PPO = ("actor.ppo_mini_batch_size=2", "data.train_batch_size=4", "actor.use_kl_loss=true")


def test_utilisation_is_flops_over_time_and_peak(model: Path):
    metrics, asked = one_step(tiny_config("smoke-ppo", *PPO), model, "NVIDIA H200")
    names = {"actor": "update_actor", "critic": "update_critic", "ref": "ref", "values": "values",
             "actor_infer": "old_log_prob"}  # fmt: skip
    for name, phase in names.items():
        want = asked[phase] / metrics[f"timing_s/{phase}"] / 989e12
        assert metrics[f"perf/mfu/{name}"] == pytest.approx(want) and want > 0
    assert asked["update_actor"] == pytest.approx(3 * asked["old_log_prob"])
    assert asked["values"] < asked["old_log_prob"]  # no output layer
    assert metrics["empty"] == {}  # the next step begins at 0
    check_known(name for name in metrics if "/" in name)


def test_a_processor_has_no_known_peak(model: Path):
    metrics, _ = one_step(tiny_config("smoke-ppo", *PPO), model)
    assert metrics["perf/mfu/actor"] is None and metrics["perf/mfu/values"] is None


def test_memory_stands_by_phase(model: Path):
    metrics, _ = one_step(tiny_config("smoke-ppo", *PPO), model)
    for phase in ("old_log_prob", "ref", "values", "update_actor", "update_critic"):
        peak, resident = (metrics[f"perf/memory/{phase}/{which}_gb"] for which in ("peak", "resident"))
        assert 0.05 < resident <= peak <= metrics["perf/max_memory_allocated_gb"]
    assert "perf/memory/residue_gb" not in metrics and "perf/memory/start/peak_gb" not in metrics


def test_an_architecture_without_a_formula_is_balanced_by_tokens(model: Path, tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "rwkv"}')
    assert costs_of(tiny_config("smoke"), "actor", str(tmp_path)) is None
    assert costs_of(tiny_config("smoke"), "actor", str(model)) is not None


class Card(Platform):
    """Stands for a GPU: what its allocator would say, call by call."""

    def memory(self) -> Memory:
        return readings.pop(0)

    def reset_peak(self) -> None:
        resets.append(True)


readings: list[Memory] = []
resets: list[bool] = []


def test_a_phase_of_several_calls_has_the_highest_peak_and_the_last_rest():
    import torch

    card = Card("cuda", torch.device("cpu"), "nccl", torch.bfloat16, "NVIDIA H200")
    readings[:] = [
        Memory(2 * GIB, 9 * GIB, 10 * GIB, 11 * GIB),
        Memory(3 * GIB, 7 * GIB, 8 * GIB, 8 * GIB),
        Memory(0, 0, GIB, GIB),
        Memory(GIB, 2 * GIB, 2 * GIB, 2 * GIB),
    ]
    resets.clear()
    phases = Phases(card, 0)
    for _ in range(2):
        with phases.phase("update_actor"):
            pass
    phases.offloaded()
    assert phases.report() == {
        "memory/update_actor/peak_gb": 9.0,
        "memory/update_actor/resident_gb": 3.0,
        "memory/residue_gb": 1.0,
        "max_memory_allocated_gb": 9.0,
        "max_memory_reserved_gb": 11.0,
    }
    with phases.phase("push"):
        pass
    report = phases.report()
    assert report["memory/push/peak_gb"] == 2.0 and report["max_memory_allocated_gb"] == 9.0
    assert len(report) == 4 and len(resets) == 3
