"""How processes end: exit codes, the two lines, JSON, tracebacks."""

import json
import os
import subprocess
import sys

import pytest

JOB = """
import sys
from verl_core.config.errors import EnvError, MachineError, RlxError, RunError, UserError
from verl_core.config.process import run_job

def main(argv):
    print("arguments", argv, file=sys.stderr)
    {body}

run_job(main)
"""


def run(body: str, *argv: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", JOB.format(body=body), *argv], capture_output=True, text=True, env=os.environ | env
    )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return None", 0),
        ("return 3", 3),
        ("raise UserError('wrong', 'do this')", 1),
        ("raise EnvError('wrong', 'do this')", 3),
        ("raise MachineError('wrong', 'do this')", 4),
        ("raise RunError('wrong', 'do this')", 5),
        ("raise RlxError('wrong', 'do this')", 70),
        ("raise KeyboardInterrupt", 130),
        ("import os; os.kill(os.getpid(), 15)", 143),
        ("raise ValueError('two\\nlines')", 70),
        ("sys.exit(9)", 9),
        ("raise MemoryError", 4),
        ("raise PermissionError(13, 'Permission denied', 'file')", 1),
        ("raise OSError(5, 'Input/output error', 'file')", 4),
        ("raise PermissionError", 70),
        (
            "import resource, threading; resource.setrlimit(resource.RLIMIT_AS, (2**28,) * 2); "
            "threading.stack_size(2**28); threading.Thread(target=print).start()",
            4,
        ),
    ],
)
def test_exit_codes_without_tracebacks(body, code):
    done = run(body, "a", "b")
    assert done.returncode == code and "Traceback" not in done.stderr and done.stdout == ""
    assert "arguments ['a', 'b']" in done.stderr


def test_a_foreseen_failure_is_two_lines():
    assert run("raise UserError('x=1 is wrong', 'set x=2')").stderr.splitlines()[1:] == [
        "error: x=1 is wrong",
        "hint: set x=2",
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise UserError('wrong')", {"error": "wrong", "hint": None, "exit_code": 1}),
        ("raise RunError('wrong', 'again')", {"error": "wrong", "hint": "again", "exit_code": 5}),
    ],
)
def test_json_is_the_only_thing_on_stdout(body, expected):
    done = run(body, "--json")
    assert json.loads(done.stdout) == expected and "error: wrong" in done.stderr
    assert run(body, "--", "--json").stdout == ""


def test_unforeseen_failures_say_where_the_traceback_is(tmp_path):
    plain = run("raise ValueError('two\\nlines')")
    assert "error: ValueError: two lines" in plain.stderr and "-v" in plain.stderr.splitlines()[-1]
    loud = run("raise ValueError('x')", "-v")
    assert "Traceback" in loud.stderr and loud.returncode == 70
    log = tmp_path / "train.log"
    log.write_text("before\n")
    quiet = run("raise ValueError('x')", RLX_TRACEBACK=str(log))
    assert str(log) in quiet.stderr and "Traceback" not in quiet.stderr
    assert log.read_text().startswith("before\nTraceback") and "ValueError: x" in log.read_text()
    nowhere = run("raise ValueError('x')", RLX_TRACEBACK=str(tmp_path / "no" / "log"))
    assert nowhere.returncode == 70 and "again with -v" in nowhere.stderr
    assert json.loads(run("raise ValueError('x')", "--json").stdout)["exit_code"] == 70


def test_a_reader_that_leaves_is_no_fault():
    code = JOB.format(body="[print(i) for i in range(100_000)]\n    return 0")
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    talk = child.stderr.read()
    assert child.wait() == 141 and "error" not in talk and "Traceback" not in talk
    child.stderr.close()
    done_first = JOB.format(body="import time; print(1, flush=True); time.sleep(0.3)")
    child = subprocess.Popen([sys.executable, "-c", done_first], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.wait() == 0, "a run that ended well did end well"
    other = run("raise BrokenPipeError('a worker left')")
    assert other.returncode == 70 and "a worker left" in other.stderr


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_full_disk_under_stdout_is_one_line(flags):
    for body in ("print('x' * 100_000)", "print('x', flush=True)", "print('x'); raise RunError('failed')"):
        with open("/dev/full", "w") as full:  # noqa: PTH123
            done = subprocess.run(
                [sys.executable, "-c", JOB.format(body=body), *flags], stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert done.returncode == 5, done.stderr
        assert done.stderr.count("error:") == 1 and "Traceback" not in done.stderr and "ignored" not in done.stderr
        assert "failed" in body or "error: no space left for what is printed" in done.stderr


def test_no_space_names_the_file():
    done = run("raise OSError(28, 'No space left on device', '/disk/file')")
    assert done.returncode == 5 and "error: no space left for /disk/file" in done.stderr


@pytest.mark.parametrize(("body", "code"), [("print('x')", 0), ("raise UserError('wrong')", 1), ("sys.exit(2)", 2)])
def test_a_closed_stdout_changes_nothing(body, code):
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", JOB.format(body=body), "--json"]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True)
    assert done.returncode == code and "Traceback" not in done.stderr


def test_ctrl_c_during_the_start_of_a_job_is_one_word():
    """Python would show where in its imports it was. `rlx` blocks the signal until the first of ours."""
    start = (
        "import os, signal, sys; from pathlib import Path; from rlx.env import launch\n"
        "launch.job_command = lambda *_: [sys.executable, '-c', sys.argv[1]]\n"
        "launch.run_in(Path(sys.executable), '', [], None)"
    )
    job = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n" + JOB.format(body="return 0")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", start, job], capture_output=True, text=True, env=env)
    assert done.returncode == 130 and done.stderr.splitlines()[-1] == "interrupted"
    assert "Traceback" not in done.stderr


def test_garbage_is_looked_for_seldom_until_what_is_needed_is_imported():
    body = "import gc; from verl_core.config import garbage as g; before = gc.get_threshold(); g.look_as_usual(); "
    body += "print(before[0], gc.get_threshold() == g._USUAL != before, gc.get_freeze_count() > 0)"
    assert run(body).stdout == "20000 True True\n"
