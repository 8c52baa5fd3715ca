"""Dockerfiles: read by a parser, their shell lines by shellcheck, and run here as far as that goes without Docker."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlx.env import uv
from tests.conftest import command_variables
from tests.support.package_index import serving, wheel

INSTRUCTIONS = {"FROM", "ARG", "ENV", "COPY", "RUN", "WORKDIR", "CMD", "ENTRYPOINT"}
IMAGE = "vllm/vllm-openai:v0.26.0"


def parsed(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of every line; continued lines are one."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", "", "\n".join(lines))
    return [(word, rest) for line in joined.splitlines() if line.strip() for word, _, rest in [line.partition(" ")]]


def scripts(text: str) -> list[str]:
    return [rest for word, rest in parsed(text) if word == "RUN"]


@pytest.fixture
def dockerfile(rlx) -> Callable[..., str]:
    def rendered(*words: str) -> str:
        done = rlx("env", "dockerfile", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return rendered


@pytest.mark.parametrize("words", [["gsm8k-ppo"], ["--engine", "sglang"], ["--vendor", IMAGE], []])
def test_every_instruction_is_known_and_every_script_passes_shellcheck(dockerfile, words):
    text = dockerfile(*words)
    instructions = parsed(text)
    assert {word for word, _ in instructions} <= INSTRUCTIONS and "@@" not in text
    froms = [i for i, (word, _) in enumerate(instructions) if word == "FROM"]
    assert all(word == "ARG" for word, _ in instructions[: froms[0]])  # nothing else may stand before the first FROM
    for word, rest in instructions:
        if word in ("CMD", "ENTRYPOINT"):
            assert isinstance(json.loads(rest), list)
        assert not (word in ("ENV", "ARG") and re.search("TOKEN|SECRET|KEY", rest))
    declared = {"CUDA", "BASE", "RLX", "ENVIRONMENTS"}
    assert {rest.partition("=")[0] for word, rest in instructions if word == "ARG"} <= declared
    checker = Path(sys.executable).with_name("shellcheck")
    for script in scripts(text):
        given = f"#!/bin/sh\nexport ENVIRONMENTS=\n{script}\n"
        done = subprocess.run([checker, "-"], input=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("words", "environments"),
    [
        ([], "fsdp"),
        (["--engine", "vllm"], "fsdp fsdp,vllm"),  # also where this machine has no driver
        (["smoke", "trainer.logger=[wandb]"], "fsdp fsdp,wandb"),
        (["--extra", "vllm-cpu"], "fsdp vllm-cpu"),
    ],
)
def test_the_image_has_the_environments_of_the_command(dockerfile, words, environments):
    assert ("ARG", f'ENVIRONMENTS="{environments}"') in parsed(dockerfile(*words))


def test_the_build_makes_each_environment_with_commands_that_exist(dockerfile, rlx, tmp_path):
    """The script of the build, with programs in place of uv and rlx that write down how they are called."""
    (script,) = [s for s in scripts(dockerfile("--engine", "vllm")) if "ENVIRONMENTS" in s]
    programs, source = tmp_path / "bin", tmp_path / "rlx"
    programs.mkdir()
    source.mkdir()
    (source / "rlx-0.1.0-py3-none-any.whl").touch()
    for name in ("uv", "rlx"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\n')
        (programs / name).chmod(0o755)
    here = script.replace("/tmp/rlx", str(source)).replace("/opt/rlx", str(tmp_path / "opt"))
    environ = {"PATH": f"{programs}:/usr/bin:/bin", "ENVIRONMENTS": "fsdp fsdp,vllm"}
    subprocess.run(["sh", "-c", here], env=environ, check=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [
        f"uv tool install --python {sys.version_info[0]}.{sys.version_info[1]} {source}/rlx-0.1.0-py3-none-any.whl",
        "rlx env sync --compile --extra=fsdp",
        "rlx env run --extra=fsdp -- python -c import verl_core",
        "rlx env sync --compile --extra=fsdp --extra=vllm",
        "rlx env run --extra=fsdp --extra=vllm -- python -c import verl_core",
    ]
    assert not source.exists()
    for command in ("sync", "run"):
        assert rlx("env", command, "--help").returncode == 0
    assert "--compile" in rlx("env", "sync", "--help").stdout
    assert rlx("env", "which", "--extra=fsdp", "--extra=vllm").returncode == 0
    assert "train" in rlx("--help").stdout


def test_a_failing_environment_fails_the_build(dockerfile, tmp_path):
    (script,) = [s for s in scripts(dockerfile()) if "ENVIRONMENTS" in s]
    for name, code in (("uv", 0), ("rlx", 3)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    here = script.replace("/tmp/rlx", str(tmp_path / "none")).replace("/opt/rlx", str(tmp_path / "opt"))
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ENVIRONMENTS": "fsdp"}
    assert subprocess.run(["sh", "-c", here], env=environ, check=False).returncode != 0


def test_a_vendor_image_keeps_its_packages_and_gets_the_missing_ones(dockerfile, tmp_path):
    """The script of the build, run in an environment that stands for the image: its torch is a build of its own,
    older than what rlx and a missing package ask for."""
    (script,) = [s for s in scripts(dockerfile("--vendor", IMAGE)) if "image.txt" in s]
    image, source = tmp_path / "image", tmp_path / "rlx"
    source.mkdir()
    needs = [
        "Provides-Extra: fsdp",
        "Requires-Dist: torch==2.11.0; extra == 'fsdp'",
        "Requires-Dist: tiny; extra == 'fsdp'",
    ]
    name, content = wheel("rlx", "", version="0.1.0", needs=needs)
    (source / name).write_bytes(content)
    name, content = wheel("torch", "BUILD = 'vendor'\n", version="2.10.0+vendor")
    (tmp_path / name).write_bytes(content)
    files = dict(
        [
            wheel("tiny", "", needs=["Requires-Dist: torch>=2.11"]),
            wheel("torch", "BUILD = 'index'\n", version="2.11.0"),
        ]
    )
    with serving(files) as index:
        environ = command_variables(
            {
                "PATH": f"{image}/bin:{tmp_path}:/usr/bin:/bin",
                "UV_DEFAULT_INDEX": f"{index.url}/simple",
                "PYTHONPATH": None,
            }
        )
        python = image / "bin" / "python3"
        (tmp_path / "uv").symlink_to(uv.find())
        subprocess.run([uv.find(), "venv", "-q", "--python", sys.executable, image], env=environ, check=True)
        install = [uv.find(), "pip", "install", "-q", "--python", python, "--no-cache", tmp_path / name]
        subprocess.run(install, env=environ, check=True)
        here = script.replace("/tmp/rlx", str(source)).replace("/tmp/image.txt", str(tmp_path / "image.txt"))
        done = subprocess.run(["sh", "-c", here], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = (
        "import torch; from importlib.metadata import version as v; print(torch.BUILD, v('torch'), v('tiny'), v('rlx'))"
    )
    out = subprocess.run([python, "-c", told], env=environ, capture_output=True, text=True, check=True).stdout
    assert out.split() == ["vendor", "2.10.0+vendor", "1.0", "0.1.0"]
    assert {name for name, _ in index.requests} == {"tiny-1.0-py3-none-any.whl"}


def test_the_engine_of_a_vendor_image_is_its_own(dockerfile):
    (script,) = [
        s for s in scripts(dockerfile("--vendor", IMAGE, "gsm8k-ppo", "trainer.logger=[wandb]")) if "image.txt" in s
    ]
    assert "rlx[fsdp,wandb] @" in script


def test_what_is_no_image_name_is_refused(rlx):
    done = rlx("env", "dockerfile", "--vendor", "x; rm -rf /")
    assert done.returncode == 1 and "is not the name of an image" in done.stderr
