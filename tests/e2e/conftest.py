"""Real runs of the real command on the builtin model, made small."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rlx import rundir
from tests.conftest import command_variables
from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.controller.run import Run
from verl_core.controller.trainer import train
from verl_core.controller.warmup import warm_up
from verl_core.tracking.records import RunRecords

Records = list[dict]

# Measured times and memory: everything else a run logs must repeat bit for bit.
NOT_REPEATABLE = ("timing_s/", "timing_per_token_ms/", "perf/")


@pytest.fixture(scope="session")
def warm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The builtin model after a shortened warm-up: it answers, rarely right."""
    phases = "[{name: skill, steps: 60, optim: {optimizer: muon, lr: 5e-3, weight_decay: 0.0}}]"
    config = effective(resolve("smoke", [f"warmup.phases={phases}"]).config)
    folder = warm_up(config, tmp_path_factory.mktemp("warm"), lambda *_: None, lambda: False)
    assert folder is not None
    return folder


@pytest.fixture
def small(warm_model: Path) -> Callable[..., list[str]]:
    """Words of a run of a few steps: `small("smoke", steps=4)`."""

    def words(profile: str = "smoke", steps: int = 4, **more: object) -> list[str]:
        keys = {
            "model.path": warm_model,
            "trainer.total_training_steps": steps,
            "trainer.test_freq": 2,
            "trainer.save_freq": 2,
            "data.val_max_samples": 20,
            "data.train_batch_size": 4,
            "actor.ppo_mini_batch_size": 4,
            "trainer.experiment_name": "run",
            **{name.replace("__", "."): value for name, value in more.items()},
        }
        return ["train", profile, *(f"{key}={value}" for key, value in keys.items())]

    return words


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The real command in the background, in a session of its own, so that all it started can be found and killed; what
    still runs at the end of the test is."""
    begun = list[subprocess.Popen[str]]()

    def popen(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "rlx", *words],
            cwd=tmp_path,
            env=command_variables({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        begun.append(process)
        return process

    yield popen
    for process in begun:
        if process.poll() is None:
            kill_session(process.pid)
        process.wait()


@pytest.fixture
def train_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Records]:
    """`rlx train` without a process of its own: `train_here(words, until=1)` stops before the second step."""
    monkeypatch.chdir(tmp_path)

    def run(words: list[str], until: int | None = None, resume: bool = False) -> Records:
        _, profile, *keys = words
        resolved = resolve(profile, keys)
        run_dir = rundir.start(resolved, resume, environment="")
        config = effective(resolved.config)

        async def work() -> None:
            def stopped() -> bool:
                return made.progress.step == until

            async with AsyncExitStack() as stack:
                made = Run(config, RunRecords(run_dir), config.model.path, resume, False, stopped)
                await made.start(stack, print)
                await train(made)
                made.finish(0, "finished")

        asyncio.run(work())
        return records(run_dir)

    return run


def same_after_a_stop(train_here: Callable[..., Records], words: list[str], until: int) -> Records:
    """What the unbroken run logs, which one that stops after step `until` and is resumed repeats."""
    unbroken = train_here([*words, "trainer.experiment_name=unbroken"])
    assert train_here(words, until=until) == [line for line in unbroken if line["step"] <= until]
    assert train_here(words, resume=True) == unbroken
    return unbroken


def records(run_dir: Path) -> Records:
    """metrics.jsonl without what cannot repeat."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(NOT_REPEATABLE)} for line in lines]


def run_dir_of(tmp_path: Path, name: str = "run") -> Path:
    return tmp_path / "runs" / "smoke" / name


def until(true: Callable[[], object], seconds: float) -> None:
    """Returns once it is true; fails after so many seconds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


def session_members(leader: int) -> list[str]:
    """Command lines of the living processes in the session of `leader`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(stat[3]) == leader and stat[0] != "Z":
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it ended while we looked
    return found


def kill_session(leader: int) -> None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[3]) == leader:
                    os.kill(int(entry.name), 9)
            except OSError:
                continue


def engines(folder: Path) -> list[int]:
    """Processes of rollout engines whose run was started in the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            own = entry.name.isdecimal() and (entry / "cwd").readlink() == folder
            if own and b"verl_core.rollout.child.host" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has ended
            continue
    return found
