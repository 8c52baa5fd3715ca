"""Archives of environments: packed by the real command from an index on this machine, unpacked with the index gone and
uv's cache empty."""

import hashlib
import io
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlx.env import fetch
from rlx.env.locked_files import LockedFile
from tests.conftest import command_variables
from tests.support.package_index import Index, lock, run_rlx, serving, small_rlx, source, wheel
from verl_core.config.errors import EnvError

FILES = dict(
    [
        wheel("tinya", "A = 1\n" + "#" * 5000),
        wheel("tinyb", "B = 2\n"),
        wheel("tinyarm", "", "cp39-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64"),
        wheel("tinyarm", "", "cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64"),
        wheel("tinynew", "", "py3-none-manylinux_2_99_x86_64"),
        source("tinysrc", "C = 3\n"),
        wheel("nvidia_cuda_runtime", "", version="13.0"),
        wheel("uv", ""),
    ]
)
EXTRAS = {
    "fsdp": ["tinya", "tinysrc"],
    "plot": ["tinyb"],
    "wandb": ["tinyarm"],
    "test": ["tinynew"],
    "vllm": ["nvidia-cuda-runtime"],
}


@dataclass
class Site:
    """A folder with a copy of rlx locked from a small index, and the commands run there."""

    folder: Path
    tree: Path
    index: Index
    variables: dict[str, str | None] = field(default_factory=dict)

    def __call__(self, *words: str, **changes: str | None) -> subprocess.CompletedProcess[str]:
        return run_rlx(self.tree, self.folder, *words, env={**self.variables, **changes})

    def pack(self, *words: str) -> Path:
        done = self("env", "pack", *words, "--out", "env.tar")
        assert done.returncode == 0, done.stderr
        return self.folder / "env.tar"

    def elsewhere(self) -> None:
        """From here on the command runs on a machine of its own: nothing cached, no index, only the archive."""
        self.index.close()
        for name in ("RLX_CACHE", "UV_CACHE_DIR"):
            self.variables[name] = str(self.folder / f"other-{name}")
        self.variables |= {"UV_DEFAULT_INDEX": "http://127.0.0.1:1/simple", "ALL_PROXY": "http://127.0.0.1:1"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Index]]:
    """The copy of rlx, made once, and its index."""
    with serving(FILES) as index:
        yield small_rlx(tmp_path_factory.mktemp("tree"), index.url, EXTRAS), index


@pytest.fixture(scope="module")
def of_plot(locked: tuple[Path, Index], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An archive of the extra `plot`: tinyb and uv."""
    folder = tmp_path_factory.mktemp("packed")
    locked[1].open()
    variables = {"RLX_CACHE": str(folder / "cache"), "UV_CACHE_DIR": str(folder / "uv")}
    return Site(folder, *locked, variables).pack("--extra", "plot").read_bytes()


@pytest.fixture
def site(locked: tuple[Path, Index], tmp_path: Path) -> Site:
    tree, index = locked
    index.open()
    return Site(tmp_path, tree, index, {"RLX_CACHE": str(tmp_path / "cache"), "UV_CACHE_DIR": str(tmp_path / "uv")})


def test_an_archive_makes_the_environment_without_network_and_with_an_empty_cache(site):
    assert site.pack("--extra", "fsdp").is_file()
    site.elsewhere()
    done = site("env", "sync", "--from", "env.tar", "--offline")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder == Path(site("env", "which", "--extra", "fsdp").stdout.strip())
    marker = json.loads((folder / "rlx-env.json").read_text())
    assert marker["extras"] == ["fsdp"]
    code = "import tinya, tinysrc, rlx; print(tinya.A, tinysrc.C, tinya.__file__)"
    ran = site("env", "run", "--extra", "fsdp", "--", "python", "-c", code)
    assert ran.stdout.startswith(f"1 3 {folder}"), ran.stderr
    made = (folder / "rlx-env.json").stat().st_mtime_ns
    assert site("env", "sync", "--from", "env.tar", "--offline").stdout == done.stdout
    assert (folder / "rlx-env.json").stat().st_mtime_ns == made
    verified = site("env", "sync", "--extra", "fsdp", "--verify", "--offline")  # for uv it is what `uv sync` makes
    assert verified.returncode == 0 and not re.search("Prepared|Installed|Uninstalled", verified.stderr)


def test_a_driver_too_old_refuses_an_archive_as_it_refuses_a_download(site):
    site.pack("--extra", "vllm")
    program = site.folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'Driver Version: 550.54.15  CUDA Version: 12.4'\n")
    program.chmod(0o755)
    path = f"{program.parent}:/usr/bin:/bin"
    done = site("env", "sync", "--from", "env.tar", "--offline", PATH=path)
    assert done.returncode == 3 and "runs CUDA 12.4 (nvidia-smi), and the lock is for CUDA 13.0" in done.stderr
    assert not list((site.folder / "cache" / "envs").glob("*/*"))
    on_cpu = site("env", "sync", "smoke", "trainer.device=cpu", "--extra", "vllm", "--from", "env.tar", PATH=path)
    assert on_cpu.returncode == 0, on_cpu.stderr


def test_options_that_look_over_a_complete_environment_do_so_with_an_archive_too(site, of_plot):
    written(site, of_plot)
    sync = ["env", "sync", "--from", "env.tar", "--offline"]
    folder = Path(site(*sync).stdout.strip())
    (module,) = folder.glob("lib/*/site-packages/tinyb.py")
    for path in folder.rglob("tinyb*.pyc"):
        path.unlink()
    assert site(*sync).returncode == 0 and not list(folder.rglob("tinyb*.pyc"))
    assert site(*sync, "--compile").returncode == 0 and list(folder.rglob("tinyb*.pyc"))
    shutil.rmtree(next(folder.glob("lib/*/site-packages/tinyb-1.0.dist-info")))
    module.unlink()
    done = site(*sync, "--verify")
    assert done.returncode == 0 and module.exists(), done.stderr


def test_the_same_packages_give_the_same_archive_and_are_fetched_once(site):
    first = site.pack("--extra", "fsdp").read_bytes()
    fetched = [name for name, _ in site.index.requests]
    assert sorted(fetched) == ["tinya-1.0-py3-none-any.whl", "tinysrc-1.0.tar.gz", "uv-1.0-py3-none-any.whl"]
    assert site.pack("--extra", "fsdp").read_bytes() == first
    assert len(site.index.requests) == len(fetched)


def test_a_dry_run_names_files_and_sizes_and_fetches_nothing(site):
    words = ["env", "pack", "--extra", "fsdp", "--out", "env.tar", "--dry-run"]
    report = json.loads(site(*words, "--json").stdout)
    sizes = {p["file"]: p["bytes"] for p in report["packages"]}
    assert sizes == {name: len(FILES[name]) for name in sizes} and "tinysrc-1.0.tar.gz" in sizes
    assert report["bytes"] == report["to_fetch_bytes"] == sum(sizes.values())
    assert "tinya-1.0-py3-none-any.whl" in site(*words).stdout
    assert {path.name for path in site.folder.iterdir()} <= {"uv"} and site.index.requests == []


def test_an_interrupted_download_goes_on_where_it_ended(site):
    name = "tinya-1.0-py3-none-any.whl"
    site.index.cut[name] = 300
    site.pack("--extra", "fsdp")
    assert [wanted for asked, wanted in site.index.requests if asked == name] == ["bytes=0-", "bytes=300-"]


def test_two_at_once_fetch_each_file_once(site):
    with ThreadPoolExecutor(2) as pool:
        words = [("env", "pack", "--extra", "fsdp", "--out", f"{n}.tar") for n in range(2)]
        both = list(pool.map(lambda each: site(*each), words))
    assert [done.returncode for done in both] == [0, 0], [done.stderr for done in both]
    fetched = [name for name, _ in site.index.requests]
    assert len(fetched) == len(set(fetched))
    assert (site.folder / "0.tar").read_bytes() == (site.folder / "1.tar").read_bytes()


def test_a_file_that_is_not_the_locked_one_leaves_no_archive(site):
    name = "tinya-1.0-py3-none-any.whl"
    site.index.changed[name] = FILES[name][:-1] + b"?"
    (site.folder / "env.tar").write_text("an older archive")
    done = site("env", "pack", "--extra", "fsdp", "--out", "env.tar")
    assert done.returncode == 3 and f"{name} from 127.0.0.1" in done.stderr and "SHA-256" in done.stderr
    assert (site.folder / "env.tar").read_text() == "an older archive"
    assert sorted(path.name for path in site.folder.iterdir() if path.is_file()) == ["env.tar"]


def test_ctrl_c_ends_at_once_and_the_next_command_goes_on(site):
    site.index.go_on.clear()
    command = [sys.executable, "-m", "rlx", "env", "pack", "--extra", "plot", "--out", "env.tar"]
    variables = command_variables({"RLX_PYTHON": None, **site.variables}, (site.tree / "cli", site.tree))
    process = subprocess.Popen(command, cwd=site.folder, env=variables, stderr=subprocess.PIPE)
    part = "cache/wheels/*/tinyb*.part"
    deadline = time.monotonic() + 30
    while not any(path.stat().st_size for path in site.folder.glob(part)) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=25) and process.returncode == 130
    assert [path.name for path in site.folder.iterdir() if path.is_file()] == []
    site.index.go_on.set()
    site.index.requests.clear()
    site.pack("--extra", "plot")
    (wanted,) = [wanted for name, wanted in site.index.requests if name.startswith("tinyb")]
    assert wanted != "bytes=0-"


@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.06])
def test_ctrl_c_while_connections_are_made_is_an_interrupt_and_no_crash(site, after_s):
    command = [sys.executable, "-m", "rlx", "env", "pack", "--extra", "fsdp", "--out", "env.tar"]
    variables = command_variables({"RLX_PYTHON": None, **site.variables}, (site.tree / "cli", site.tree))
    site.index.go_on.clear()
    process = subprocess.Popen(command, cwd=site.folder, env=variables, stderr=subprocess.PIPE)
    while not (site.folder / "cache" / "wheels").exists() and process.poll() is None:
        time.sleep(0.001)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=25) and process.returncode == 130


def test_what_is_under_way_has_ended_when_the_first_failure_is_raised(locked, tmp_path, monkeypatch):
    """A thread that is at work while the interpreter ends can crash it."""
    monkeypatch.setenv("RLX_CACHE", str(tmp_path))
    index = locked[1]
    index.open()
    good, bad = (name for name in FILES if name.startswith(("tinya-", "tinyb-")))
    sha256 = hashlib.sha256(FILES[good]).hexdigest()
    files = [
        LockedFile(name.split("-")[0], "1.0", f"{index.url}/files/{name}", value, None, frozenset())
        for name, value in ((good, sha256), (bad, "0" * 64))
    ]
    at_work = threading.Event()
    at_end: list[str] = []

    def slow(_: int, name: str) -> None:
        if name == good:
            at_work.set()
            time.sleep(0.3)
            at_end.append(name)
        else:
            at_work.wait(10)

    with pytest.raises(EnvError, match="SHA-256"):
        fetch.fetch(files, slow)
    assert at_end == [good]


def test_a_disk_without_space_leaves_no_half_archive(site):
    site.pack("--extra", "fsdp").unlink()
    variables = command_variables({"RLX_PYTHON": None, **site.variables}, (site.tree / "cli", site.tree))
    done = subprocess.run(
        [sys.executable, "-m", "rlx", "env", "pack", "--extra", "fsdp", "--out", "env.tar"],
        cwd=site.folder,
        env=variables,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3 and "the archive env.tar cannot be written" in done.stderr, done.stderr
    assert [path.name for path in site.folder.iterdir() if path.is_file()] == []


def test_a_damaged_file_in_the_cache_is_fetched_again(site):
    site.pack("--extra", "plot")
    (kept,) = site.folder.glob("cache/wheels/*/tinyb*.whl")
    kept.write_bytes(b"x" * kept.stat().st_size)
    site.pack("--extra", "plot")
    assert kept.read_bytes() == FILES[kept.name]


def test_no_network_is_one_line_and_what_came_is_kept(site):
    site.index.close()
    done = site("env", "pack", "--extra", "plot", "--out", "env.tar")
    assert done.returncode == 3 and "cannot be fetched from 127.0.0.1" in done.stderr
    assert not (site.folder / "env.tar").exists()


def test_another_machine_type_gets_its_own_wheels(site):
    words = ["env", "pack", "--extra", "wandb", "--out", "env.tar", "--dry-run", "--json"]
    for machine in ("aarch64", "x86_64"):
        report = json.loads(site(*words, "--platform", machine).stdout)
        assert report["machine"] == machine
        assert f"tinyarm-1.0-cp39-abi3-manylinux_2_17_{machine}.manylinux2014_{machine}.whl" in {
            p["file"] for p in report["packages"]
        }


def test_the_c_library_of_the_other_machine_is_asked_for(site):
    words = ["env", "pack", "--platform", "x86_64", "--extra", "test", "--out", "env.tar", "--dry-run"]
    refused = site(*words, "--glibc", "2.28")
    assert refused.returncode == 3 and "tinynew" in refused.stderr and "--glibc" in refused.stderr
    assert site(*words, "--glibc", "2.99").returncode == 0
    assert site(*words, "--glibc", "new").returncode == 1


@pytest.mark.parametrize(
    ("field_name", "value", "said"),
    [
        ("lock", "0" * 64, "lock 000000000000 (here "),
        ("python", "3.99", f"Python 3.99 (here {sys.version_info[0]}.{sys.version_info[1]})"),
        ("machine", "riscv64", "machine linux riscv64 (here linux "),
        ("glibc", "2.99", "glibc 2.99 or newer (here "),
    ],
)
def test_an_archive_for_something_else_is_refused_in_one_line(site, of_plot, field_name, value, said):
    rewrite(written(site, of_plot), lambda manifest: manifest | {field_name: value})
    done = site("env", "sync", "--from", "env.tar", "--offline")
    assert done.returncode == 3
    error, hint = done.stderr.strip().splitlines()
    assert f"env.tar is for {said}" in error and "rlx env pack --extra plot" in hint


def test_an_archive_of_an_older_lock_is_refused(site, of_plot, tmp_path):
    written(site, of_plot)
    tree = tmp_path / "newer"
    shutil.copytree(site.tree, tree)
    text = (tree / "pyproject.toml").read_text()
    (tree / "pyproject.toml").write_text(text.replace('["tinyb"]', '["tinyb", "tinya"]'))
    lock(tree)
    done = run_rlx(tree, tmp_path, "env", "sync", "--from", "env.tar", "--offline", env=site.variables)
    assert done.returncode == 3 and "env.tar is for lock " in done.stderr


def test_what_the_archive_lacks_is_named_or_fetched(site, of_plot):
    written(site, of_plot)
    both = ["env", "sync", "--from", "env.tar", "--extra", "plot", "--extra", "fsdp"]
    refused = site(*both, "--offline")
    assert refused.returncode == 3 and "env.tar lacks tinya, tinysrc: it holds the extras plot" in refused.stderr
    site.index.requests.clear()
    done = site(*both)
    assert done.returncode == 0, done.stderr
    assert {name for name, _ in site.index.requests} == {"tinya-1.0-py3-none-any.whl", "tinysrc-1.0.tar.gz"}
    assert len(list(Path(done.stdout.strip()).glob("lib/*/site-packages/tiny?.py"))) == 2


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (member("../outside"), "'../outside' does not belong into it"),
        (member("/tmp/outside"), "'/tmp/outside' does not belong into it"),
        (member("wheels/tinyb-1.0-py3-none-any.whl", tarfile.SYMTYPE, "/etc/passwd"), "does not belong into it"),
        (member("wheels/tinyb-1.0-py3-none-any.whl", tarfile.LNKTYPE, "uv.lock"), "does not belong into it"),
        (member("wheels/tinyb-1.0-py3-none-any.whl", tarfile.GNUTYPE_SPARSE), "does not belong into it"),
        (member("wheels/other-1.0-py3-none-any.whl"), "does not belong into it"),
        (member("wheels/tinyb-1.0-py3-none-any.whl"), "another SHA-256 than its manifest says"),
        (None, "wheels/tinyb-1.0-py3-none-any.whl is missing"),
    ],
)
def test_a_hostile_or_damaged_archive_is_refused_and_leaves_nothing(site, of_plot, entry, said):
    rewrite(written(site, of_plot), lambda manifest: manifest, {"wheels/tinyb-1.0-py3-none-any.whl": entry})
    done = site("env", "sync", "--from", "env.tar", "--offline")
    assert done.returncode == 3 and said in done.stderr, done.stderr
    assert not list((site.folder / "cache" / "envs").glob("*/*"))


def test_a_manifest_cannot_name_a_wheel_that_the_lock_does_not_know(site, of_plot):
    def with_its_own(manifest: dict) -> dict:
        other = {**manifest["wheels"][0], "sha256": hashlib.sha256(b"").hexdigest()}
        return manifest | {"wheels": [other, *manifest["wheels"][1:]]}

    rewrite(written(site, of_plot), with_its_own)
    done = site("env", "sync", "--from", "env.tar", "--offline")
    assert done.returncode == 3 and "is not the file that the lock names" in done.stderr


def test_a_locked_wheel_cannot_be_said_to_be_built_from_a_source(site, of_plot):
    def built(manifest: dict) -> dict:
        wheels = [
            w | {"built_from": w["sha256"], "sha256": hashlib.sha256(b"").hexdigest()} for w in manifest["wheels"]
        ]
        return manifest | {"wheels": wheels}

    rewrite(
        written(site, of_plot),
        built,
        {"wheels/tinyb-1.0-py3-none-any.whl": member("wheels/tinyb-1.0-py3-none-any.whl")},
    )
    done = site("env", "sync", "--from", "env.tar", "--offline")
    assert done.returncode == 3 and "is not the file that the lock names" in done.stderr


def test_a_manifest_nested_without_end_is_one_line(site):
    path = site.folder / "env.tar"
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = 100_000
        tar.addfile(entry, io.BytesIO(b"[" * entry.size))
    done = site("env", "sync", "--from", "env.tar", "--offline")
    assert done.returncode == 3 and "manifest.json cannot be read" in done.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"glibc": "new"},
        {"extras": 3},
        {"extras": [["fsdp"]]},
        {"extras": ["\x1b[2Jfsdp"]},
        {"lock": 3},
        {"wheels": [{"name": "tinyb"}]},
        {"surplus": 1},
    ],
    ids=str,
)
def test_a_manifest_that_makes_no_sense_is_one_line(site, of_plot, change):
    rewrite(written(site, of_plot), lambda manifest: manifest | change)
    done = site("env", "sync", "--from", "env.tar", "--offline")
    assert done.returncode == 3 and "manifest.json cannot be read" in done.stderr


@pytest.mark.parametrize("change", [{"file": "../tinyb.whl"}, {"sha256": "x --index-url http://a"}, {"n_bytes": "9"}])
def test_an_entry_of_the_manifest_cannot_say_more_than_a_wheel(site, of_plot, change):
    rewrite(
        written(site, of_plot),
        lambda manifest: manifest | {"wheels": [wheel | change for wheel in manifest["wheels"]]},
    )
    done = site("env", "sync", "--from", "env.tar", "--offline")
    assert done.returncode == 3 and "manifest.json cannot be read" in done.stderr


@pytest.mark.parametrize("content", [b"", b"no tar at all" * 100, None, "folder"])
def test_what_is_no_archive_is_one_line(site, content):
    if content == "folder":
        (site.folder / "env.tar").mkdir()
    elif content is not None:
        (site.folder / "env.tar").write_bytes(content)
    done = site("env", "sync", "--from", "env.tar", "--offline")
    assert done.returncode in (1, 3) and len(done.stderr.strip().splitlines()) == 2 and "env.tar" in done.stderr


def test_a_cut_archive_is_refused(site, of_plot):
    (site.folder / "env.tar").write_bytes(of_plot[:8000])
    done = site("env", "sync", "--from", "env.tar", "--offline")
    assert done.returncode == 3 and "env.tar cannot be used" in done.stderr


def written(site: Site, content: bytes) -> Path:
    path = site.folder / "env.tar"
    path.write_bytes(content)
    return path


def rewrite(
    path: Path, change: Callable[[dict], dict], members: dict[str, tarfile.TarInfo | None] | None = None
) -> None:
    """Write the archive again with another manifest, and with other members in place of some (None: left out)."""
    content = {}
    with tarfile.open(path) as tar:
        for entry in tar:
            stream = tar.extractfile(entry)
            assert stream is not None
            content[entry.name] = (entry, stream.read())
    entry, text = content["manifest.json"]
    text = json.dumps(change(json.loads(text))).encode()
    entry.size = len(text)
    content["manifest.json"] = (entry, text)
    for name, other in (members or {}).items():
        if other is None:
            del content[name]
        else:
            content[name] = (other, b"")
    with tarfile.open(path, "w") as tar:
        for entry, text in content.values():
            tar.addfile(entry, io.BytesIO(text))
