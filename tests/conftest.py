"""Fixtures that several packages' tests share."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from verl_core.config import registry

if TYPE_CHECKING:
    from tests.support.object_stores import ObjectServer

# Started in the background of a script, tests ignore Ctrl-C, and every command under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Ray reads this when it is imported: without it, it starts workers through the `uv run` that started the tests.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

# Until all tests are collected: what is imported until then stays, and looking for garbage in it takes as long as it.
gc.disable()

# On a loaded machine any example may be slow, and a run of tests shall end as the one before it.
settings.register_profile("rlx", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rlx")

ROOT = Path(__file__).resolve().parents[1]
Run = Callable[..., subprocess.CompletedProcess[str]]

LONGEST = (
    "e2e_ranks", "e2e_smoke", "training_parts", "e2e_algorithms", "e2e_pools", "e2e_distillation", "e2e_vllm",
    "rollout_child_hf", "training_compile", "e2e_model_rewards", "rollout_vllm_tp", "e2e_lora", "e2e_replicas",
    "e2e_gsm8k", "training_sharding", "training_shared_prompt", "rollout_vllm_kill", "rollout_vllm",
)  # fmt: skip
"""Files with slow tests of a minute or more, the longest first: begun late, one would run when all else has ended."""


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` need a CUDA device; torch is asked only when there are some. The longest files come first."""
    order = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a user's module declares in one test is unknown to those after it."""
    yield
    for key in registry._DECLARED:
        del registry._ENTRIES[key]
    registry._DECLARED.clear()


@pytest.fixture
def rlx(tmp_path: Path) -> Run:
    """The real command: `rlx("train", "smoke", env={...}, cwd=...)` runs it in a subprocess, by default in tmp_path and
    with jobs in the interpreter of the tests, and returns the finished process with its text."""

    def run(
        *words: str, env: Mapping[str, str | None] | None = None, cwd: Path = tmp_path, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rlx", *words],
            cwd=cwd,
            env=command_variables(env or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


def command_variables(
    changes: Mapping[str, str | None], sources: Sequence[Path] = (ROOT / "cli", ROOT)
) -> dict[str, str]:
    """The environment of a command under test; None removes a variable."""
    wanted: dict[str, str | None] = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
        "RLX_PYTHON": "current",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        **changes,
    }
    return {name: value for name, value in wanted.items() if value is not None}


@pytest.fixture(scope="session")
def s3_server() -> Iterator["ObjectServer"]:
    """An S3 server in this process, started once."""
    from tests.support.object_stores import s3

    with s3() as server:
        yield server


@pytest.fixture
def s3(s3_server: "ObjectServer") -> Iterator["ObjectServer"]:
    """The S3 server, which this process and those it starts reach."""
    with s3_server.reached():
        yield s3_server
