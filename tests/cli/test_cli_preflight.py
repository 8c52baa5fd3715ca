"""What stops an environment is found before a download: exit 3, one line, a hint, and nothing made."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from preflight_project import NOWHERE, make

from rlx.env import driver, glibc, index, lockfile, preflight
from rlx.env.requirements import Package, asked_for, hosts, locked_packages
from tests.conftest import command_variables
from verl_core.config.errors import EnvError

Sync = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def sync(tmp_path: Path) -> Sync:
    """`rlx env sync` of the real command over a lock with the given facts, with an empty uv cache of its own."""

    def run(*words: str, env: Mapping[str, str | None] | None = None, **facts) -> subprocess.CompletedProcess[str]:
        sources = make(tmp_path / "source", **facts)
        own = {"RLX_PYTHON": None, "RLX_ENVS": str(tmp_path / "envs"), "UV_CACHE_DIR": str(tmp_path / "uv")}
        command = [sys.executable, "-m", "rlx", *(words or ("env", "sync", "--extra", "fsdp"))]
        variables = command_variables(own | dict(env or {}), sources)
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60)
        assert not [path for path in (tmp_path / "envs").glob("*") if path.is_dir()], "something was made"
        return done

    return run


def program(folder: Path, name: str, text: str) -> str:
    """A stand-in for a program, and the PATH that finds it first."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("facts", "said", "hinted"),
    [
        ({"environment": "sys_platform == 'win32'"}, "holds no packages for linux on", "RLX_PYTHON"),
        ({"python": ">=3.14"}, "is not a Python >=3.14", "--python 3.12"),
        ({"tag": "py3-none-manylinux_2_99_x86_64"}, "cargo needs glibc 2.99 or newer", "newer system"),
        ({"size": 10**16}, "no space for uv's cache", "UV_CACHE_DIR"),
        ({}, f"there is no network to {NOWHERE} (Connection refused)", "rlx env sync --from"),
    ],
    ids=["platform", "python", "glibc", "space", "network"],
)
def test_a_lock_that_does_not_fit_is_refused_by_the_command(sync, monkeypatch, facts, said, hinted):
    if facts.get("tag", "").endswith("x86_64"):
        facts = {**facts, "tag": facts["tag"].replace("x86_64", lockfile.platform.machine())}
    done = sync(**facts)
    assert done.returncode == 3, done.stderr
    error, hint = done.stderr.strip().splitlines()
    assert error.startswith("error:") and said in error
    assert hint.startswith("hint:") and hinted in hint


def test_uv_offline_with_a_cold_cache_is_refused_without_a_connection(sync):
    done = sync(env={"UV_OFFLINE": "1"})
    assert done.returncode == 3 and "UV_OFFLINE=1 keeps uv off the network" in done.stderr


def test_an_index_variable_that_cannot_help_is_named(sync):
    done = sync(env={"UV_DEFAULT_INDEX": "http://127.0.0.1:9/mirror"})
    assert "UV_DEFAULT_INDEX does not help" in done.stderr


@pytest.mark.parametrize("command", [("train",), ("env", "sync")], ids=" ".join)
@pytest.mark.parametrize(("device", "said"), [("auto", "runs CUDA 12.4"), ("cpu", "there is no network to")])
def test_a_driver_too_old_refuses_unless_the_run_is_on_the_cpu(sync, tmp_path, command, device, said):
    """trainer.device=cpu comes past the driver, to the next thing that is missing here."""
    path = program(
        tmp_path / "bin", "nvidia-smi", "| NVIDIA-SMI 550.54  Driver Version: 550.54.15  CUDA Version: 12.4 |"
    )
    done = sync(
        *command, "smoke", f"trainer.device={device}",
        name="nvidia-cuda-runtime", version="13.0.96", env={"PATH": path},
    )  # fmt: skip
    assert done.returncode == 3 and said in done.stderr
    if device == "auto":
        assert all(
            word in done.stderr for word in ("cuda-compat-13-0", "driver 580", "RLX_PYTHON", "trainer.device=cpu")
        )


# What each reading gives


def locked(*wheels: str, name: str = "p", version: str = "1") -> Package:
    return Package(name, version, tuple(f"https://host/{wheel}" for wheel in wheels))


def test_the_lock_of_this_release():
    """The numbers the documentation and the driver table speak of."""
    packages = locked_packages(("fsdp",))
    assert driver.cuda_needed(packages) == (13, 0)
    needed, package = glibc.needed(packages)
    assert (2, 17) <= needed <= (2, 34) and package
    assert hosts(packages) == {"https://files.pythonhosted.org"}
    assert {"torch", "transformers", "ray"} <= {package.name for package in packages}
    assert "vllm" not in {package.name for package in packages}


def test_engines_bring_their_own_versions():
    """The markers of extras that exclude each other are evaluated: sglang's transformers is another one."""
    versions = {
        extra: {package.name: package.version for package in locked_packages(("fsdp", extra))}
        for extra in ("vllm", "sglang")
    }
    assert versions["vllm"]["transformers"] != versions["sglang"]["transformers"]
    assert "sglang" not in versions["vllm"] and "vllm" not in versions["sglang"]


def test_the_oldest_fitting_wheel_of_a_package_counts(monkeypatch):
    monkeypatch.setattr(glibc.platform, "machine", lambda: "x86_64")
    two = locked(
        "p-1-py3-none-manylinux_2_28_x86_64.whl", "p-1-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    )
    anywhere = locked("q-1-py3-none-any.whl", "q-1-py3-none-manylinux_2_40_x86_64.whl", name="q")
    other = locked("r-1-py3-none-manylinux_2_40_aarch64.whl", "r-1-cp27-cp27m-manylinux_2_40_x86_64.whl", name="r")
    escaped = locked("t-1%2Bcu130-py3-none-manylinux_2_31_x86_64.whl", name="t")
    assert glibc.needed([two, anywhere, other]) == ((2, 17), "p")
    assert glibc.needed([two, escaped]) == ((2, 31), "t")
    assert glibc.needed([anywhere, other]) is None


@pytest.mark.parametrize(("told", "refused"), [("glibc 2.27", True), ("glibc 2.28", False), ("", True)])
def test_glibc_of_the_system(monkeypatch, told, refused):
    monkeypatch.setattr(glibc.os, "confstr", lambda name: told)
    monkeypatch.setattr(glibc.platform, "machine", lambda: "x86_64")
    package = [locked("p-1-py3-none-manylinux_2_28_x86_64.whl")]
    if refused:
        with pytest.raises(EnvError, match=r"needs glibc 2\.28"):
            glibc.check(package)
    else:
        glibc.check(package)


@pytest.mark.parametrize(
    ("names", "cuda"),
    [
        ([("cuda-toolkit", "13.0.2"), ("nvidia-cuda-runtime", "13.1.5")], (13, 0)),
        ([("nvidia-cuda-runtime-cu12", "12.8.90")], (12, 8)),
        ([("nvidia-cuda-runtime", "13.0.96")], (13, 0)),
        ([("torch", "2.11.0"), ("nvidia-cuda-nvrtc", "13.0.88")], None),
    ],
)
def test_cuda_is_read_from_the_lock(names, cuda):
    assert driver.cuda_needed([locked(name=name, version=version) for name, version in names]) == cuda


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("| Driver Version: 580.95.05    CUDA Version: 13.0 |", (13, 0)),
        ("Driver Version: 535.1  CUDA Version : 12.2", (12, 2)),
        ("| Driver Version: 470.82.01 CUDA Version: N/A |", (11, 0)),
        ("Failed to initialize NVML", None),
    ],
)
def test_nvidia_smi_is_read(monkeypatch, tmp_path, text, cuda):
    monkeypatch.setenv("PATH", program(tmp_path / "bin", "nvidia-smi", text))
    found = driver.installed()
    assert (found and found.cuda) == cuda


@pytest.mark.parametrize(("value", "cuda", "source"), [(13010, (13, 1), "libcuda"), (0, (12, 4), "nvidia-smi")])
def test_libcuda_is_asked_first_and_in_a_child(monkeypatch, tmp_path, value, cuda, source):
    """A stand-in for the library reaches the child through its start-up file: this process never loads it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes\n"
        "class Library:\n"
        "    def __init__(self, name): assert name == 'libcuda.so.1'\n"
        f"    def cuDriverGetVersion(self, number): number._obj.value = {value}; return {0 if value else 100}\n"
        "ctypes.CDLL = Library\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", program(tmp_path / "bin", "nvidia-smi", "CUDA Version: 12.4"))
    assert driver.installed() == driver.Driver(cuda, source)


def test_a_driver_runs_every_toolkit_of_its_major_version(monkeypatch):
    thirteen = [locked(name="cuda-toolkit", version="13.2.0")]
    for have, fits in (((13, 0), True), ((14, 1), True), ((12, 9), False)):
        monkeypatch.setattr(driver, "installed", lambda have=have: driver.Driver(have, "libcuda"))
        if fits:
            driver.check(thirteen)
        else:
            with pytest.raises(EnvError, match=r"runs CUDA 12\.9 \(libcuda\), and the lock is for CUDA 13\.2"):
                driver.check(thirteen)
    driver.check([locked(name="torch")])  # a lock without CUDA asks for no driver


def test_space_for_the_environment_counts_on_another_file_system(monkeypatch, tmp_path):
    cache, home = tmp_path / "cache", tmp_path / "home"
    cache.mkdir(), home.mkdir()
    monkeypatch.setattr(preflight, "uv_cache", lambda: cache)
    free = {cache: 10_000, home: 10}
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda place: SimpleNamespace(free=free[place]))
    preflight.check_space(home / "env", 5000, 5000)  # one file system: hard links
    with pytest.raises(EnvError, match=r"no space for uv's cache.*about 11 kB needed"):
        preflight.check_space(home / "env", 6000, 6000)
    real = Path.stat
    monkeypatch.setattr(
        Path, "stat", lambda self, **k: SimpleNamespace(st_dev=1, st_mode=0o40755) if self == home else real(self, **k)
    )
    with pytest.raises(EnvError, match=r"no space for the environment in .*home: about 9 kB needed"):
        preflight.check_space(home / "env", 0, 5000)


# The network


@pytest.fixture
def server() -> Iterator[str]:
    """The address of something that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "none.toml"))
    return monkeypatch


def test_servers_are_connected_to(no_proxies, server):
    failures = index.unreachable([f"http://{server}", NOWHERE, "https://nowhere.invalid"], 5)
    assert set(failures) == {NOWHERE, "https://nowhere.invalid"}
    assert failures[NOWHERE] == "Connection refused"


def test_a_proxy_is_connected_to_in_place_of_the_server(no_proxies, server):
    no_proxies.setenv("HTTPS_PROXY", f"http://{server}")
    assert index.unreachable(["https://nowhere.invalid"], 5) == {}
    no_proxies.setenv("HTTPS_PROXY", "127.0.0.1:9")
    assert index.unreachable(["https://nowhere.invalid"], 5) == {
        "https://nowhere.invalid": "proxy 127.0.0.1: Connection refused"
    }
    no_proxies.setenv("NO_PROXY", "nowhere.invalid")
    assert "proxy" not in index.unreachable(["https://nowhere.invalid"], 5)["https://nowhere.invalid"]


def test_a_proxy_that_only_uv_knows_is_believed(no_proxies, tmp_path):
    (tmp_path / "none.toml").write_text('https-proxy = "http://proxy:3128"\n')
    assert index.unreachable([NOWHERE], 5) == {}


def test_a_name_server_that_never_answers_does_not_hold_the_command(no_proxies):
    def hang(*_: object) -> None:
        index.time.sleep(8)
        raise OSError("it gave up")

    no_proxies.setattr(index.socket, "create_connection", hang)
    started = index.time.monotonic()
    assert index.unreachable(["https://a", "https://b"], 0.3) == dict.fromkeys(
        ("https://a", "https://b"), "no answer in 0.3 s"
    )
    assert index.time.monotonic() - started < 6


def test_what_an_interpreter_needs_follows_extras_in_extras():
    assert {"megatron-core", "torch", "omegaconf"} <= set(asked_for(("megatron",)))
    assert "rlx" not in asked_for(("megatron",))
    assert "vllm" not in asked_for(("fsdp",))
