"""`rlx doctor`: each check seen ok, warning and failing; exit 4 when one fails; stand-ins only for what is not here."""

import json
import os
import resource
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlx import checkup
from rlx.checkup import gpu, limits, nccl, network, processes, software, storage, variables
from rlx.checkup.finding import Finding, Subject
from rlx.env import driver, index, lockfile, preflight, uv
from verl_core.config.compose import resolve
from verl_core.config.errors import EnvError

GENERAL = Subject()
GIB = 1024**3


def subject(*overrides: str, profile: str = "smoke") -> Subject:
    return Subject.of(resolve(profile, list(overrides), None))


def states(found: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(finding.check, finding.state) for finding in found]


def only(found: Iterator[Finding]) -> Finding:
    (finding,) = found
    return finding


@pytest.fixture(autouse=True)
def plain_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of the developer's shell decides a test, and no home folder."""
    for name in list(os.environ):
        if name.startswith(("HF_", "NCCL_", "GLOO_", "CUDA_", "WANDB_", "RLX_", "UV_", "LD_", "RAY_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stand-in for nvidia-smi: what it prints for its bare call, for GPUs and for processes on them."""

    def make(gpus: str = "", apps: str = "", bare: str = "CUDA Version: 13.0", code: int = 0) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        cases = f"*query-gpu*) printf '%s' '{gpus}';; *compute-apps*) printf '%s' '{apps}';; *) echo '{bare}';;"
        program.write_text(f'#!/bin/sh\ncase "$*" in {cases} esac\nexit {code}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return make


# The command


def test_findings_and_their_form(rlx):
    done = rlx("doctor", "--json", env={"RLX_PYTHON": None})
    found = json.loads(done.stdout)
    names = [finding["check"] for finding in found]
    wanted = ["python", "platform", "uv", "lock", "RLX_PYTHON", "environment", "environments", "uv cache", "runs"]
    wanted += ["hub cache", "/dev/shm", "memory", "limits", "clock", "driver", "nccl", "packages", "hub", "ports"]
    wanted += ["hub token", "variables", "git", "ray", "leftover"]
    assert [name for name in names if name in wanted] == wanted
    assert {finding["state"] for finding in found} <= {"ok", "warn", "fail"}
    assert all(finding["fix"] for finding in found if finding["state"] != "ok")
    assert {"python": "ok", "lock": "ok"}.items() <= {f["check"]: f["state"] for f in found}.items()


def test_a_failure_is_exit_4_with_a_fix(rlx):
    done = rlx("doctor", env={"RLX_PYTHON": "/no/python"})
    assert done.returncode == 4
    assert "fail  RLX_PYTHON" in done.stdout and "fix:" in done.stdout
    assert done.stderr.splitlines()[0].startswith("error: this machine fails:") and "RLX_PYTHON" in done.stderr


def test_under_json_only_json_is_on_stdout_also_when_a_check_fails(rlx):
    done = rlx("doctor", "--json", env={"RLX_PYTHON": "/no/python"})
    assert done.returncode == 4
    assert "fail" in [finding["state"] for finding in json.loads(done.stdout)]


def test_a_profile_brings_its_checks(rlx):
    words = ("gsm8k-ppo", "trainer.device=cuda", 'trainer.logger=["console","wandb"]', "rollout.engine=hf")
    done = rlx("doctor", *words, "--json", env={"RLX_PYTHON": "current", "WANDB_MODE": "offline"})
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert found["wandb"]["state"] == "ok" and "fsdp + wandb" in found["RLX_PYTHON"]["found"]
    if not gpu.has_nvidia_driver():
        assert done.returncode == 4 and "trainer.device=cuda" in found["driver"]["found"]


def test_an_unknown_profile_is_the_users_error(rlx):
    assert rlx("doctor", "no-such-profile").returncode == 1


def test_an_error_inside_a_check_is_its_failure(monkeypatch):
    def broken(subject: Subject) -> Iterator[Finding]:
        raise EnvError("it is gone", "bring it back")
        yield

    monkeypatch.setattr(checkup, "CHECKS", {"thing": broken})
    assert list(checkup.findings(GENERAL)) == [Finding("thing", "fail", "it is gone", "bring it back")]


# Software


def test_uv_of_another_version(monkeypatch, tmp_path):
    told = [
        ("echo uv 99.1.0", "ok", "99.1.0 at "),
        ("echo uv 0.1.0", "fail", "is uv 0.1.0"),
        ("exit 3", "fail", "not uv"),
    ]
    for n, (text, state, said) in enumerate(told):
        program = tmp_path / f"uv{n}"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setattr("uv.find_uv_bin", lambda program=program: str(program))
        uv.find.cache_clear()
        found = only(software.uv_program(GENERAL))
        assert found.state == state and said in found.found
    monkeypatch.setenv("RLX_PYTHON", "current")  # nothing is made then
    assert only(software.uv_program(GENERAL)).state == "warn"
    uv.find.cache_clear()


def test_a_stale_lock_fails_and_only_warns_when_it_is_not_used(monkeypatch):
    def stale() -> None:
        raise EnvError("uv.lock is stale", "uv lock")

    assert only(software.lock(GENERAL)).state == "ok"
    monkeypatch.setattr(uv, "check_lock", stale)
    assert only(software.lock(GENERAL)) == Finding("lock", "fail", "uv.lock is stale", "uv lock")
    monkeypatch.setenv("RLX_PYTHON", "current")
    assert only(software.lock(GENERAL)).state == "warn"


def test_an_interpreter_at_hand_is_compared(monkeypatch):
    assert "not set" in only(software.interpreter_at_hand(GENERAL)).found
    monkeypatch.setenv("RLX_PYTHON", "current")
    monkeypatch.setattr(software.interpreter, "differences", lambda *_: ([], []))
    assert only(software.interpreter_at_hand(GENERAL)).state == "ok"
    monkeypatch.setattr(software.interpreter, "differences", lambda *_: (["torch 2.9 (lock: 2.11.0)"], ["ray"]))
    finding = only(software.interpreter_at_hand(GENERAL))
    assert finding.state == "warn" and "torch 2.9 (lock: 2.11.0)" in finding.found and "ray" in finding.fix


def test_an_environment_that_does_not_fit_the_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("RLX_ENVS", str(tmp_path))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    finding = only(software.environment(GENERAL))
    assert finding.state == "ok" and "packages to download, up to" in finding.found
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda place: SimpleNamespace(free=5))
    with pytest.raises(EnvError, match="no space"):
        list(software.environment(GENERAL))


# Disk, memory, limits, clock


def test_a_folder(monkeypatch, tmp_path):
    place = tmp_path / "not" / "there"
    assert storage.folder("runs", place, 1, "move it").state == "ok"
    low = storage.folder("runs", place, 10**18, "move it")
    assert (low.state, low.fix) == ("warn", "move it")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert storage.folder("runs", place, 1, "move it").state == "fail"
    assert storage.folder("hub cache", place, 1, "move it", "warn").state == "warn"


def test_shared_memory(monkeypatch, tmp_path):
    assert only(storage.shared_memory(GENERAL, tmp_path / "none")).found == "not used on this system"
    for free, state in ((2 * GIB, "ok"), (64 * 1024**2, "warn")):
        monkeypatch.setattr(storage.shutil, "disk_usage", lambda place, free=free: SimpleNamespace(free=free))
        assert only(storage.shared_memory(GENERAL, tmp_path)).state == state


@pytest.mark.parametrize(
    ("files", "state", "said"),
    [
        ({}, "ok", "68.7 GB"),
        ({"sys/fs/cgroup/memory.max": "max"}, "ok", "68.7 GB"),
        (
            {"sys/fs/cgroup/a/memory.max": str(32 * GIB), "sys/fs/cgroup/a/b/memory.max": "max"},
            "ok",
            "34.4 GB (container",
        ),
        ({"sys/fs/cgroup/memory.max": str(2 * GIB)}, "warn", "2.1 GB (container limit)"),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB)}, "warn", "2.1 GB (container limit)"),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, "ok", "68.7 GB"),
    ],
)
def test_a_containers_memory_limit(tmp_path, files, state, said):
    machine = {"proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB", "proc/self/cgroup": "0::/a/b"}
    for name, text in (machine | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    finding = only(limits.memory(GENERAL, tmp_path))
    assert finding.state == state and finding.found.startswith(said)


def test_limits_of_the_shell(monkeypatch):
    for soft, state in ((65536, "ok"), (resource.RLIM_INFINITY, "ok"), (1024, "warn")):
        monkeypatch.setattr(resource, "getrlimit", lambda which, soft=soft: (soft, soft))
        finding = only(limits.ulimits(GENERAL))
        assert finding.state == state
    assert "open files 1024" in finding.found and "processes 1024" in finding.found and "ulimit -n" in finding.fix


def test_a_clock_before_the_lock(monkeypatch):
    assert only(limits.clock(GENERAL)).state == "ok"
    monkeypatch.setattr(time, "time", lambda: 0.0)
    finding = only(limits.clock(GENERAL))
    assert finding.state == "warn" and finding.found.startswith("1970-01-01 00:00 UTC is before the lock was made")


# GPUs

H200 = "0, GPU-aa, NVIDIA H200, 143771, {used}\n1, GPU-bb, NVIDIA H200, 143771, 3"


def test_a_machine_without_a_driver(monkeypatch):
    monkeypatch.setattr(gpu, "has_nvidia_driver", lambda: False)
    assert only(gpu.cuda_driver(GENERAL)).state == "ok"
    assert only(gpu.cuda_driver(subject("trainer.device=cuda"))).state == "fail"
    assert only(gpu.cuda_driver(subject())).state == "ok"
    slow = only(gpu.cuda_driver(subject(profile="gsm8k-grpo")))
    assert slow.state == "warn" and "meant for 1 x RTX4090" in slow.found and slow.fix
    assert only(gpu.cuda_driver(subject("trainer.device=cpu", profile="gsm8k-grpo"))).state == "ok"
    assert list(gpu.gpus(GENERAL)) == []


def test_the_driver_against_the_lock(monkeypatch, nvidia_smi):
    nvidia_smi()
    for found, state in (
        (driver.Driver((13, 0), "libcuda"), "ok"),
        (driver.Driver((12, 8), "libcuda"), "fail"),
        (None, "warn"),
    ):
        monkeypatch.setattr(driver, "installed", lambda found=found: found)
        assert only(gpu.cuda_driver(GENERAL)).state == state
    monkeypatch.setattr(driver, "installed", lambda: driver.Driver((12, 8), "libcuda"))
    assert only(gpu.cuda_driver(subject("trainer.device=cpu"))).state == "warn"
    monkeypatch.setenv("RLX_PYTHON", "current")  # its torch is for another CUDA
    assert only(gpu.cuda_driver(GENERAL)) == Finding("driver", "ok", "runs CUDA 12.8 (libcuda)")


def test_gpus_and_who_is_on_them(nvidia_smi):
    nvidia_smi(H200.format(used=90000), "GPU-aa, 77, VLLM::EngineCore")
    busy, free = gpu.gpus(GENERAL)
    assert busy.check == "gpu 0" and busy.state == "warn"
    assert busy.found == "NVIDIA H200, 150.8 GB, 94.4 GB in use by VLLM::EngineCore (77)"
    assert (free.check, free.state, free.found) == ("gpu 1", "ok", "NVIDIA H200, 150.8 GB, free")


def test_a_gpu_without_memory_of_its_own(nvidia_smi):
    nvidia_smi("0, GPU-aa, NVIDIA GB10, [N/A], [N/A]")
    assert only(gpu.gpus(GENERAL)).found == "NVIDIA GB10, memory shared with the host, free"


def test_an_nvidia_smi_that_fails(nvidia_smi):
    nvidia_smi("Failed to initialize NVML: Driver/library version mismatch", code=18)
    assert only(gpu.gpus(GENERAL)).state == "warn"
    failed = only(gpu.gpus(subject("trainer.device=cuda")))
    assert failed.state == "fail" and "version mismatch" in failed.found


@pytest.mark.parametrize(
    ("overrides", "hidden", "state"),
    [
        (["cluster.nproc=2"], None, "ok"),
        (["cluster.nproc=2"], "1", "fail"),
        (["cluster.nproc=2"], "GPU-bb,0", "ok"),
        (["cluster.nproc=2"], "0,7,1", "fail"),
        (["cluster.nproc=4"], None, "fail"),
        (["cluster.nproc=4", "trainer.device=cpu"], None, None),
        (["cluster.nproc=4"], "", None),
        (["cluster.nproc=4", "trainer.device=cuda"], "", "fail"),
        (["cluster.nnodes=4", "cluster.n_gpus_per_node=2"], None, "ok"),
    ],
)
def test_gpus_asked_for_and_present(monkeypatch, nvidia_smi, overrides, hidden, state):
    nvidia_smi(H200.format(used=0))
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    wanted = subject("trainer.device=auto", "data.train_batch_size=64", "actor.ppo_mini_batch_size=64", *overrides)
    found = [finding.state for finding in gpu.gpus(wanted) if finding.check == "gpus"]
    assert found == ([state] if state else [])


# NCCL


@pytest.mark.parametrize(
    ("named", "state"),
    [
        ("eth", "ok"), ("eth0,ib0", "ok"), ("=eth0", "ok"), ("^lo", "ok"),
        ("ib", "fail"), ("=eth", "fail"), ("^eth,lo", "fail"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("variable", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_interfaces_that_variables_name(monkeypatch, variable, named, state):
    monkeypatch.setenv(variable, named)
    found = list(nccl.interface_problems(["eth0", "lo"]))
    assert [finding.state for finding in found] == (["fail"] if state == "fail" else [])
    assert all(variable in finding.found and "eth0, lo" in finding.fix for finding in found)


def test_nccl_version_and_what_slows_it(monkeypatch):
    assert states(nccl.nccl(GENERAL)) == [("nccl", "ok")]
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("NCCL_IB_DISABLE", "0")
    version, switched = nccl.nccl(GENERAL)
    locked = next(p["version"] for p in lockfile.packages() if p["name"].startswith("nvidia-nccl"))
    assert version.found.startswith(f"{locked} in the lock")
    assert switched.state == "warn" and switched.found.startswith("NCCL_P2P_DISABLE=1")


def test_rdma_needs_locked_memory(monkeypatch, tmp_path):
    (tmp_path / "mlx5_0").mkdir()
    assert nccl.rdma_devices(tmp_path) == ["mlx5_0"] and nccl.rdma_devices(tmp_path / "none") == []
    monkeypatch.setattr(nccl, "rdma_devices", lambda: ["mlx5_0"])
    for soft, found in ((resource.RLIM_INFINITY, ["ok"]), (65536, ["ok", "warn"])):
        monkeypatch.setattr(resource, "getrlimit", lambda which, soft=soft: (soft, soft))
        assert [finding.state for finding in nccl.nccl(GENERAL)] == found


# Network, ports, keys


def test_servers_that_do_not_answer_are_warnings(monkeypatch):
    monkeypatch.setattr(index, "unreachable", lambda servers, timeout: dict.fromkeys(servers, "no answer"))
    packages, hub = network.servers(GENERAL)
    assert packages.state == hub.state == "warn" and "HF_HUB_OFFLINE" in hub.fix
    monkeypatch.setattr(index, "unreachable", lambda servers, timeout: {})
    assert [finding.state for finding in network.servers(GENERAL)] == ["ok", "ok"]
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert "https://mirror.example answers" in [finding.found for finding in network.servers(GENERAL)]


def test_who_is_told_to_stay_offline_asks_nobody(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("UV_OFFLINE", "true")
    monkeypatch.setattr(index, "unreachable", lambda servers, timeout: dict.fromkeys(servers, "asked"))
    assert states(network.servers(GENERAL)) == [("packages", "ok"), ("hub", "ok")]


def test_a_name_server_that_hangs_costs_two_seconds(monkeypatch):
    def hang(*_: object) -> None:
        time.sleep(8)
        raise OSError("it gave up")

    monkeypatch.setattr(index.socket, "create_connection", hang)
    started = time.monotonic()
    assert [finding.state for finding in network.servers(GENERAL)] == ["warn", "warn"]
    assert time.monotonic() - started < 6


def test_ports(monkeypatch):
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("RAY_PORT", str(port))
        taken = [finding for finding in network.ports(GENERAL) if str(port) in finding.found]
        assert [finding.state for finding in taken] == ["warn"]
        assert [finding.state for finding in network.ports(subject())] == ["ok"]  # one rank: no Ray
    monkeypatch.setattr(network, "_ephemeral", lambda: 100)
    assert "only 100 ephemeral ports" in [finding.found for finding in network.ports(subject())]
    monkeypatch.setattr(network, "_free", lambda port: port != 0)
    assert ("ports", "fail") in states(network.ports(GENERAL))


def test_the_ephemeral_range(tmp_path):
    (tmp_path / "range").write_text("32768\t60999\n")
    assert network._ephemeral(tmp_path / "range") == 28232
    assert network._ephemeral(tmp_path / "none") is None


def test_the_hubs_token(monkeypatch, tmp_path):
    assert only(network.hub_token(GENERAL)).found.startswith("none")
    file = tmp_path / "home/.cache/huggingface/token"
    file.parent.mkdir(parents=True)
    file.write_text("hf_secret\n")
    file.chmod(0o644)
    readable = only(network.hub_token(GENERAL))
    assert readable.state == "warn" and readable.fix == f"chmod 600 {file}"
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert only(network.hub_token(GENERAL)).state == "ok"
    file.write_text("\n")
    assert only(network.hub_token(GENERAL)).state == "warn"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert only(network.hub_token(GENERAL)) == Finding("hub token", "ok", "HF_TOKEN is set")


def test_a_key_for_wandb_where_it_is_used(monkeypatch, tmp_path):
    uses = subject('trainer.logger=["wandb"]')
    assert list(network.wandb_key(subject())) == []
    assert only(network.wandb_key(uses)).state == "warn"
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.netrc").write_text("machine api.wandb.ai\n login user\n password key\n")
    (tmp_path / "home/.netrc").chmod(0o600)
    assert only(network.wandb_key(uses)).state == "ok"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    assert only(network.wandb_key(uses)).state == "warn"
    for name, value in (("WANDB_API_KEY", "key"), ("WANDB_MODE", "offline")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert only(network.wandb_key(uses)).state == "ok"


# Variables


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PYTHONPATH", "{}", "whose torch takes the place"),
        ("LD_PRELOAD", "/opt/libx.so", "LD_PRELOAD=/opt/libx.so"),
        ("LD_LIBRARY_PATH", "/nowhere:{}", "with libnccl"),
        ("CUDA_LAUNCH_BLOCKING", "1", "makes every kernel wait"),
        ("CUDA_VISIBLE_DEVICES", "", "hides every GPU"),
    ],
)
def test_variables_that_change_runs(monkeypatch, tmp_path, name, value, said):
    monkeypatch.setattr(variables, "has_nvidia_driver", lambda: True)
    assert only(variables.variables(GENERAL)).state == "ok"
    (tmp_path / "torch.py").touch()
    (tmp_path / "libnccl.so.2").touch()
    monkeypatch.setenv(name, value.format(tmp_path))
    finding = only(variables.variables(GENERAL))
    assert finding.state == "warn" and said in finding.found


def test_hidden_gpus_by_device(monkeypatch):
    monkeypatch.setattr(variables, "has_nvidia_driver", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert only(variables.variables(subject("trainer.device=cuda"))).state == "fail"
    assert only(variables.variables(subject("trainer.device=cpu"))).state == "ok"


# What earlier runs left


@pytest.fixture
def job(tmp_path: Path) -> Iterator[int]:
    """A process that looks like a job of rlx and whose parent is gone: its pid."""
    script = "import time; print(flush=True); time.sleep(60)"
    command = f"'{sys.executable}' -c '{script}' -m verl_core.controller.job > '{tmp_path}/out' 2>&1 & echo $!"
    pid = int(subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout)
    deadline = time.monotonic() + 10
    while not (tmp_path / "out").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    yield pid
    os.kill(pid, 9)


def test_a_job_whose_parent_is_gone(job):
    finding = only(processes.leftover(GENERAL))
    assert finding.state == "warn" and f"{job} (" in finding.found
    assert finding.fix.startswith("unless you left a run in the background: kill ") and str(job) in finding.fix


def test_a_job_with_a_parent_is_no_leftover():
    command = [sys.executable, "-c", "import time; time.sleep(60)", "-m", "verl_core.controller.job"]
    with subprocess.Popen(command) as child:
        assert str(child.pid) not in only(processes.leftover(GENERAL)).found
        assert child.pid in [process.pid for process in processes.processes()]
        child.kill()


def test_a_ray_cluster_that_runs(tmp_path):
    """A program by the name of Ray's, since a real cluster takes ten seconds to come up."""
    program = tmp_path / "raylet"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as child:
        deadline = time.monotonic() + 5
        while f"raylet ({child.pid})" not in (found := only(processes.ray_cluster(GENERAL))).found:
            assert time.monotonic() < deadline
        child.kill()
    assert found.state == "warn" and "ray stop" in found.fix
