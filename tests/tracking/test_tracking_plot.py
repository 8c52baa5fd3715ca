"""`rlx runs plot`: a picture file and text from a run's records, without torch."""

import math
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from verl_core.config.errors import UserError
from verl_core.tracking.curves import load_run, panels
from verl_core.tracking.jsonl import JsonlTracker
from verl_core.tracking.plot import draw
from verl_core.tracking.plot_terminal import terminal_text


def make_run(folder: Path, steps: int = 30, warmup: bool = True, kl: str = "actor/ppo_kl") -> Path:
    folder.mkdir()
    if warmup:
        tracker = JsonlTracker(folder / "warmup.jsonl")
        for step in range(1, 21):
            tracker.log(step, {"warmup/loss": 3 / step, "warmup/phase": int(step > 12)})
    tracker = JsonlTracker(folder / "metrics.jsonl")
    tracker.log(0, {"val/test_score/a": 0.04})
    for step in range(1, steps + 1):
        tracker.log(
            step,
            {
                "critic/score/mean": 1 - math.exp(-step / 9),
                "response_length/mean": 8 + step / 4,
                "actor/entropy": 1 / step if step != 3 else math.nan,  # a null in the record
                kl: 1e-9 * step,
                "timing_s/step": 0.25,
            }
            | ({"val/test_score/a": 0.5 + step / 100} if step % 10 == 0 else {}),
        )
    return folder


def plot(*arguments: object) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from verl_core.tracking.plot_job import main; code = main(sys.argv[1:]);"
        "assert not {'torch', 'transformers', 'ray'} & set(sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_the_command_writes_a_png_and_draws_in_the_terminal_without_torch(tmp_path):
    run = make_run(tmp_path / "smoke-1")
    done = plot(run)
    png = (run / "plot.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", png[16:24]) == (1800, 960) and len(png) > 30_000
    assert done.stdout.startswith("smoke-1: 30 steps, reward 0.11 → 0.96, held out 0.04 → 0.80\n")
    for title in (
        "Reward (o held out)",
        "Response length, tokens",
        "Entropy",
        "KL of one update",
        "Step time",
        "Warm-up loss",
    ):
        assert title in done.stdout
    assert "\x1b" not in done.stdout  # not a terminal
    assert done.stderr.strip() == f"wrote {run / 'plot.png'}"


def test_several_runs_as_svg_named_in_the_legend(tmp_path):
    runs = [make_run(tmp_path / f"run-{i}", steps=10 * i) for i in (1, 2)]
    out = tmp_path / "both.svg"
    done = plot(*runs, "--out", out, "--no-terminal")
    svg = out.read_text()
    assert svg.startswith("<?xml") and "<!-- run-1 -->" in svg and "<!-- run-2 -->" in svg and "<!-- 2 runs -->" in svg
    assert done.stdout == ""
    assert not (runs[0] / "plot.png").exists()


def test_panels_follow_what_was_recorded(tmp_path):
    plain = load_run(make_run(tmp_path / "plain", warmup=False))
    assert [p.title for p in panels([plain])][3:] == ["KL of one update", "Step time", "Gradient norm"]
    with_ref = load_run(make_run(tmp_path / "ref", kl="actor/kl_loss"))
    assert [p.title for p in panels([plain, with_ref])][3:] == ["KL to the reference", "Step time", "Warm-up loss"]
    draw([plain], tmp_path / "x.png")  # the gradient norm was not recorded: an empty panel, no crash


def test_curves_leave_out_what_is_null_and_know_phases(tmp_path):
    run = load_run(make_run(tmp_path / "r"))
    entropy = run.curve("actor/entropy")
    assert entropy.steps[:3] == [1, 2, 4] and entropy.values[2] == 0.25
    assert run.validation.steps == [0, 10, 20, 30] and run.phase_starts == [12]


def test_terminal_fits_its_width_and_numbers_several_runs(tmp_path):
    runs = [load_run(make_run(tmp_path / f"run-{i}")) for i in (1, 2)]
    for width in (60, 120):
        text = terminal_text(runs, width, colour=False)
        assert max(map(len, text.splitlines())) <= width
        assert text.splitlines()[0] == "1 run-1   2 run-2"
    assert "\x1b[" in terminal_text(runs, 80, colour=True)
    kl = text[text.index("KL of one update") :]
    assert "5.0e-4" in kl and "-5.0e-4" in kl  # 1e-9 a step is drawn as nothing, not as a rising curve


def test_one_step_is_enough(tmp_path):
    run = load_run(make_run(tmp_path / "r", steps=1))
    draw([run], tmp_path / "one.png")
    assert "1 steps" in terminal_text([run], 80, colour=False)


def test_what_cannot_be_plotted_is_said_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"is not a run directory: it has no metrics\.jsonl"):
        load_run(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(UserError, match="no finished step yet"):
        load_run(tmp_path)
    run = load_run(make_run(tmp_path / "r"))
    with pytest.raises(UserError, match=r"unknown picture format \.doc"):
        draw([run], tmp_path / "x.doc")
    with pytest.raises(UserError, match=r"cannot write .*nowhere/x\.png"):
        draw([run], tmp_path / "nowhere" / "x.png")
    command = [sys.executable, "-m", "verl_core.tracking.plot_job", str(tmp_path / "no-run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert (
        done.stderr.startswith(f"error: {tmp_path / 'no-run'} is not a run directory")
        and "hint: rlx runs ls" in done.stderr
    )
