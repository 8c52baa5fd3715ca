"""Ranks on several nodes of one Ray cluster: the same environment everywhere, or a refusal that names the node."""

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from controller_tiny import tiny_config, tiny_model
from ray.cluster_utils import Cluster

from tests.conftest import ROOT
from verl_core.config.errors import EnvError
from verl_core.controller.executors import nodes
from verl_core.controller.executors.base import placements
from verl_core.controller.executors.ray import RayExecutor
from verl_core.controller.executors.variables import carried
from verl_core.controller.fingerprint import fingerprint

# The interpreter of these tests behind a program that is another one on the second node when the job says so.
INTERPRETER = """#!/bin/sh
if [ -n "$SECOND_NODE" ]; then
    case "$2 $SECOND_IS" in
        "-m other-torch") export PYTHONPATH="{other_torch}:$PYTHONPATH" ;;
        "-m no-source") export PYTHONPATH="{empty}" ;;
        "-m silent") exec sleep 20 ;;
        "-m broken") echo "libpython3.12.so: cannot open shared object file" >&2; exit 127 ;;
    esac
fi
STARTED_BY="$0" exec {python} "$@"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with room for one rank each; the second one's processes know that they are there."""
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    started.add_node(num_cpus=1, env_vars={"SECOND_NODE": "yes", "NCCL_DEBUG": "WARN"})
    yield started
    started.shutdown()


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sys.executable of the job, from here on."""
    packages = tmp_path / "other_torch" / "torch-2.10.0.dist-info"
    packages.mkdir(parents=True)
    (packages / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0\n")
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(
        INTERPRETER.format(python=sys.executable, other_torch=packages.parent, empty=tmp_path / "nothing")
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))
    return program


def small_copy(folder: Path) -> Path:
    """rlx's source at another place."""
    for name in ("verl_core", "profiles"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, folder)
    return folder


def asked(source: Path) -> dict[str, str]:
    """The fingerprint that the interpreter gives with this source."""
    command = [sys.executable, "-P", "-m", "verl_core.controller.fingerprint"]
    environ = {**os.environ, "PYTHONPATH": str(source)}
    return json.loads(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)


def start(cluster: Cluster, folder: Path) -> list[tuple[str | None, ...]]:
    """Start a rank on each of two nodes; NCCL_DEBUG, SECOND_NODE and the interpreter as each rank has them."""
    keys = ["cluster.executor=ray", f"cluster.ray_address={cluster.address}", "trainer.nnodes=2"]
    config = tiny_config("smoke", *keys, "trainer.n_gpus_per_node=1", "trainer.device=cpu")
    executor = RayExecutor()

    def seen(_: object) -> tuple[str | None, ...]:
        return tuple(os.environ.get(name) for name in ("NCCL_DEBUG", "SECOND_NODE", "STARTED_BY"))

    async def both() -> list[tuple[str | None, ...]]:
        try:
            groups = await executor.start(config, placements(config), str(tiny_model(folder)), blank=True)
            (group,) = groups.values()
            return await group.call("__ray_call__", seen)
        finally:
            await executor.close()

    return asyncio.run(both())


@pytest.mark.slow
def test_ranks_run_the_jobs_interpreter_and_the_users_variables_win(cluster, interpreter, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")  # the second node was started with another value
    seen = start(cluster, tmp_path / "model")
    assert sorted(seen, key=str) == [("INFO", "yes", str(interpreter)), ("INFO", None, str(interpreter))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "said", "hint"),
    [
        ("other-torch", "differs: torch 2.10.0 (here 2.11.0)", "same interpreter"),
        ("no-source", "lacks rlx's source", "the same rlx at the same place"),
        ("broken", "does not start: libpython3.12.so: cannot open", "same interpreter"),
        ("silent", "did not answer within 2 s", "same interpreter"),
    ],
)
def test_a_node_with_another_environment_is_refused_by_name(
    cluster, interpreter, tmp_path, monkeypatch, second, said, hint
):
    monkeypatch.setenv("SECOND_IS", second)
    monkeypatch.setattr(nodes, "ANSWER_S", 2 if second == "silent" else 30)
    with pytest.raises(EnvError) as refused:
        start(cluster, tmp_path / "model")
    address = cluster.worker_nodes.copy().pop().node_ip_address
    assert refused.value.message.startswith("node ") and f"({address})" in refused.value.message
    assert said in refused.value.message and "\n" not in refused.value.message
    assert hint in refused.value.hint


def test_a_node_without_the_interpreter_is_told_the_command_that_makes_it(cluster, tmp_path, monkeypatch):
    folder = tmp_path / "envs" / "fsdp-0123"
    folder.mkdir(parents=True)
    (folder / "rlx-env.json").write_text('{"extras": ["fsdp", "wandb"]}')
    monkeypatch.setattr(sys, "executable", str(folder / "bin" / "python"))
    with pytest.raises(EnvError, match=f"lacks the interpreter {sys.executable}") as refused:
        start(cluster, tmp_path / "model")
    assert f"RLX_ENVS={tmp_path}/envs rlx env sync --extra fsdp --extra wandb" in refused.value.hint


def test_a_cluster_that_is_not_there_is_refused_in_one_line(tmp_path):
    config = tiny_config("smoke", "cluster.executor=ray", "cluster.ray_address=127.0.0.1:1", "trainer.nnodes=2")
    with pytest.raises(EnvError, match=r"cannot join the Ray cluster at 127\.0\.0\.1:1: ") as refused:
        asyncio.run(RayExecutor().start(config, placements(config), str(tmp_path)))
    assert "\n" not in refused.value.message and "ray start" in refused.value.hint


def test_what_belongs_to_a_machine_or_is_secret_stays_there():
    users = {"NCCL_DEBUG": "INFO", "MY_URL": "http://a", "VLLM_MAX_TOKENS": "9", "TOKENIZERS_PARALLELISM": "true"}
    own = {"PATH": "/bin", "HOME": "/h", "CUDA_VISIBLE_DEVICES": "0", "SLURM_PROCID": "3", "LD_LIBRARY_PATH": "/l"}
    secret = {"HF_TOKEN": "t", "WANDB_API_KEY": "k", "AWS_SECRET_ACCESS_KEY": "s", "db_password": "p"}
    assert carried({**users, **own, **secret}) == users


def test_a_fingerprint_changes_with_the_source(tmp_path):
    ours = fingerprint()
    copy = small_copy(tmp_path)
    assert asked(copy) == ours
    (copy / "verl_core" / "batch" / "packing.py").write_text("changed = True\n")
    theirs = asked(copy)
    assert {name for name in ours if theirs[name] != ours[name]} == {"rlx's source"}
