"""Memory that runs out is a failed run (exit 5): the phase, what was held, what would fit; and no other rank hangs."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.controller.controller_tiny import answers, tiny_config, tiny_model
from verl_core.algorithms.loss import Totals
from verl_core.algorithms.losses import SftLoss
from verl_core.config.compose import resolve
from verl_core.config.errors import RunError
from verl_core.config.write import dump
from verl_core.controller import job
from verl_core.controller.executors.base import placements
from verl_core.controller.executors.ray import RayExecutor
from verl_core.controller.out_of_memory import OutOfMemory, changes_that_help, out_of_memory
from verl_core.controller.phases import Phases
from verl_core.controller.roles import Role
from verl_core.planning.plan import gpu_for
from verl_core.planning.plan import planned as plan_of
from verl_core.platforms import current

CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.72 GiB of which 1.2 GiB is free."
)


def cpu_error() -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58)
    return caught.value


@pytest.mark.parametrize("error", [cpu_error(), MemoryError(), torch.OutOfMemoryError(CUDA_TEXT)])
def test_it_is_told_with_what_to_lower(error):
    told = out_of_memory(error)
    assert told is not None and told.exit_code == 5
    assert told.message.startswith("out of memory: ") and "\n" not in told.message
    assert "rollout.max_num_seqs" in told.hint


def test_other_errors_are_none_of_its_business():
    assert out_of_memory(RuntimeError("shape mismatch")) is None
    assert out_of_memory(ValueError("DefaultCPUAllocator")) is None
    with pytest.raises(RuntimeError, match="shape mismatch"), Phases(current("cpu"), 0).phase("push"):
        raise RuntimeError("shape mismatch")


@pytest.mark.parametrize(
    ("error", "asked"),
    [(cpu_error(), "1073741824.00 GiB asked for, "), (torch.OutOfMemoryError(CUDA_TEXT), "2.50 GiB asked for, "),
     (MemoryError(), "")],
)  # fmt: skip
def test_a_phase_says_where_and_how_much(error, asked: str):
    with pytest.raises(OutOfMemory) as caught, Phases(current("cpu"), 3).phase("update_actor"):
        raise error
    size = r"[\d.]+ [GM]iB"
    want = rf"out of memory in update_actor on rank 3: {re.escape(asked)}{size} allocated, of {size}"
    assert re.fullmatch(want, caught.value.message)
    back = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(back, OutOfMemory) and back.phase == "update_actor"


@pytest.mark.parametrize(
    ("profile", "phase", "planned"),
    [
        ("gsm8k-grpo", "update_actor", "actor update"),
        ("gsm8k-ppo", "update_critic", "critic update"),
        ("gsm8k-ppo", "values", "critic values"),
        ("smoke", "update_actor", "actor update"),
        ("smoke-opd", "teacher", "teacher_skilled log-prob"),
        ("smoke-prime", "reward_model", "reward_model log-prob"),
    ],
)
def test_up_to_three_changes_of_the_plan_are_suggested(profile: str, phase: str, planned: str):
    config = resolve(profile, []).config
    hint = changes_that_help(config, phase)
    assert hint is not None and hint.startswith("try ") and hint.endswith("; see `rlx plan`")
    found = re.findall(r"((?:[a-z_.]+=\S+ ?)+) \(" + planned + r" ([\d.]+) ([GM])iB by the plan\)", hint)
    assert 1 <= len(found) <= 3 and len(found) == hint.count("by the plan")
    gpu, _ = gpu_for(config, None)
    before = memory_of(resolve(profile, []).config, gpu, planned)
    for words, number, unit in found:
        after = memory_of(resolve(profile, words.split()).config, gpu, planned)
        assert after < 0.91 * before
        assert after / (2**30 if unit == "G" else 2**20) == pytest.approx(float(number), rel=0.1)


def memory_of(config, gpu, phase: str) -> float:
    return next(found.memory.total for found in plan_of(config, gpu).phases if found.name == phase)


@pytest.mark.parametrize("words", [["model.path=nobody/unheard-of"], []])
def test_without_a_plan_or_a_phase_of_it_the_hint_is_the_usual_one(words: list[str]):
    assert changes_that_help(resolve("gsm8k-grpo", words).config, "start") is None


def test_the_job_hands_the_plans_changes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "config.yaml").write_text(dump(resolve("gsm8k-grpo", []).config))
    (tmp_path / "metrics.jsonl").touch()

    def fails(*_: object) -> int:
        raise OutOfMemory("out of memory in update_actor on rank 0", "usual", "update_actor")

    monkeypatch.setattr(job, "_work", fails)
    with pytest.raises(OutOfMemory) as caught:
        job.main([str(tmp_path)])
    assert "by the plan" in str(caught.value.hint)
    assert "by the plan" in (tmp_path / "train.log").read_text()


@pytest.mark.slow
def test_one_rank_of_two_ends_the_run_and_the_other_does_not_hang(tmp_path: Path):
    """The other rank waits in the collective of a backward pass that will never be complete."""
    text = CUDA_TEXT

    class OneRankRunsOut(SftLoss):
        def __call__(self, out, batch, totals):
            import torch

            if torch.distributed.get_rank() == 1:
                raise torch.OutOfMemoryError(text)
            return super().__call__(out, batch, totals)

    config = tiny_config("smoke", "cluster.nproc=2")
    batch = answers(4, 4)

    async def step() -> None:
        executor = RayExecutor()
        try:
            groups = await executor.start(config, placements(config), str(tiny_model(tmp_path / "model")))
            await asyncio.wait_for(Role("actor", groups["main"]).step(batch, OneRankRunsOut(), Totals.of(batch)), 60)
        finally:
            await asyncio.wait_for(executor.close(), 30)

    with pytest.raises(RunError, match=r"out of memory in update_actor on rank 1: 2\.50 GiB asked for"):
        asyncio.run(step())


def test_a_job_loads_torch_only_when_it_listens_to_ctrl_c():
    code = "import sys; import verl_core.controller.job; print('torch' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(Path(job.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "False\n"
