"""The command's face: fast help, grouped by workflow, usage errors, the version."""

import os
import resource
import subprocess
import sys

import pytest
from typer.main import get_command

from rlx.commands import COMMANDS
from rlx.env.lockfile import version
from rlx.main import app
from tests.conftest import command_variables

HEAVY = ("torch", "ray", "transformers", "vllm", "datasets", "numpy", "omegaconf", "rich")


def cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_is_fast(rlx):
    """In processor seconds, which a busy machine does not change; the quiet-machine figure is a benchmark's."""
    rlx("--help")  # writes bytecode
    before = cpu_seconds_of_children()
    assert rlx("--help").returncode == 0
    assert cpu_seconds_of_children() - before <= 0.4


def test_help_loads_nothing_heavy(rlx):
    probe = (
        "import sys\n"
        "from rlx.main import main\n"
        "sys.argv = ['rlx', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print('loaded:', sorted(set(sys.modules) & set({HEAVY!r})))\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert "Usage: rlx" in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_a_dry_run_needs_no_training_package(rlx):
    """Resolving and planning work in the light environment of the checkout."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'ray', 'transformers', 'datasets')));"
    probe = f"{blocked} sys.argv = ['rlx', 'train', 'smoke', '--dry-run']; from rlx.main import main; main()"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "smoke" in done.stdout


def test_bare_command_prints_grouped_help_that_ends_with_where_to_start(rlx):
    done = rlx()
    assert done.returncode == 0
    sections = [
        line.rstrip(":") for line in done.stdout.splitlines() if line.endswith(":") and not line.startswith(" ")
    ]
    assert sections == ["Options", "Start", "Train", "Use the result", "Machine"]
    assert "Start here: `rlx train smoke`" in done.stdout.split("Machine:")[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_summary_is_the_first_line_of_the_command_help(name):
    command = get_command(app).get_command(None, name)
    assert command.help.splitlines()[0].rstrip(".") == COMMANDS[name].summary.rstrip(".")


def test_version(rlx):
    done = rlx("--version")
    assert (done.returncode, done.stdout) == (0, f"rlx {version()}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "Did you mean 'train'"),
        (["train", "--no-such-option"], "--no-such-option"),
        (["train", "smoke", "smoke-ppo", "--dry-run"], "one profile at most"),
        (["merge"], "SOURCE"),
        (["env", "run", "smoke"], "after `--`"),
    ],
)
def test_usage_errors_are_exit_2(rlx, words, said):
    done = rlx(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("words", [["profile", "ls"], ["profile", "show", "smoke"], ["--help"]])
def test_a_reader_that_leaves_is_no_fault(words):
    ours, theirs = os.pipe()
    os.close(ours)
    run = [sys.executable, "-m", "rlx", *words]
    done = subprocess.run(run, env=command_variables({}), stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    assert (done.returncode, done.stderr.strip()) == (141, "")
