"""What goes wrong ends with one line, the right exit code, and nothing lost or left behind."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import command_variables
from tests.e2e.conftest import kill_session, records, run_dir_of, session_members
from tests.e2e.test_e2e_repeat import wait_for


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_stops_after_the_step_with_a_checkpoint_and_leaves_no_process(small, start, tmp_path, number, code):
    process = start(*small("smoke", steps=1000, trainer__save_freq=-1))
    metrics = run_dir_of(tmp_path) / "metrics.jsonl"
    wait_for(metrics, process)
    while len(metrics.read_text().splitlines()) < 3:
        time.sleep(0.05)
    os.kill(process.pid, number)
    assert process.wait(timeout=60) == code
    last = records(run_dir_of(tmp_path))[-1]["step"]
    assert (run_dir_of(tmp_path) / "checkpoints" / f"global_step_{last}" / "manifest.json").exists()
    assert json.loads((run_dir_of(tmp_path) / "summary.json").read_text())["exit_reason"] in (
        "interrupted",
        "terminated",
    )
    assert session_members(process.pid) == []


def test_kill_9_leaves_no_process(small, start, tmp_path):
    process = start(*small("smoke", steps=1000))
    wait_for(run_dir_of(tmp_path) / "metrics.jsonl", process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while (left := session_members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    kill_session(process.pid)
    assert left == []


def test_two_signals_kill_at_once(small, start, tmp_path):
    process = start(*small("smoke", steps=1000))
    wait_for(run_dir_of(tmp_path) / "metrics.jsonl", process)
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=10) != 0
    deadline = time.monotonic() + 10
    while (left := session_members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    kill_session(process.pid)
    assert left == []


def test_a_reward_that_always_raises_is_exit_5_with_its_reason(rlx, small, tmp_path):
    path = write(
        tmp_path / "reward.py",
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    raise ValueError('no such key: points')\n",
    )
    done = rlx(*small("smoke", trainer__val_before_train="false", reward__custom_reward_function__path=path))
    assert done.returncode == 5
    assert "no such key: points" in done.stderr and "hint:" in done.stderr and "Traceback" not in done.stderr


def test_a_reward_that_sometimes_raises_or_hangs_costs_only_those_answers(train_here, small, tmp_path):
    path = write(
        tmp_path / "reward.py",
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    if len(solution_str) % 3 == 0:\n        raise ValueError('odd answer')\n"
        "    right = solution_str.strip().endswith(ground_truth)\n"
        "    return {'score': float(right), 'length': len(solution_str)}\n",
    )
    lines = train_here(small("smoke", steps=2, reward__custom_reward_function__path=path))
    assert 0 < lines[1]["reward/failed"] < 32
    assert lines[1]["reward/length/mean"] > 0
    answers = [json.loads(x) for x in (run_dir_of(tmp_path) / "rollouts" / "step_1.jsonl").read_text().splitlines()]
    assert all(("odd answer" in (a["score_error"] or "")) == (len(a["answer"]) % 3 == 0) for a in answers)


def test_a_broken_prompt_row_is_exit_1_naming_file_and_row_and_leaves_no_run(rlx, small, tmp_path):
    good = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "1+1?"}],
        "reward_model": {"ground_truth": "2"},
    }
    lines = [json.dumps(good)] * 5
    lines[3] = json.dumps({**good, "prompt": None})
    path = write(tmp_path / "prompts.jsonl", "\n".join(lines))
    done = rlx(*small("smoke", data__train_files=path))
    assert done.returncode == 1, done.stderr
    assert "prompts.jsonl" in done.stderr and "row 4" in done.stderr
    assert not run_dir_of(tmp_path).exists()


def test_a_wrong_key_writes_nothing(rlx, tmp_path):
    done = rlx("train", "smoke", "actor.optim.lrr=1")
    assert done.returncode == 1
    assert "actor.optim.lrr" in done.stderr and "actor.optim.lr" in done.stderr.replace("lrr", "")
    assert list(tmp_path.iterdir()) == []


def test_a_model_folder_without_weights_is_exit_1_and_leaves_no_run(rlx, small, warm_model, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((warm_model / name).read_bytes())
    done = rlx(*small("smoke", model__path=bare))
    assert done.returncode == 1, done.stderr
    assert str(bare) in done.stderr and "weights" in done.stderr
    assert not run_dir_of(tmp_path).exists()


def test_an_engine_whose_log_probs_differ_is_exit_4_unless_only_a_warning_is_asked_for(rlx, train_here, small, caplog):
    done = rlx(*small("smoke", steps=1, trainer__parity_threshold="1e-12"))
    assert done.returncode == 4, done.stderr
    assert "nats a token" in done.stderr and "trainer.parity=warn" in done.stderr
    let = {"trainer.parity_threshold": "1e-12", "trainer.parity": "warn", "trainer.experiment_name": "let"}
    assert train_here(small("smoke", steps=1, **let))[-1]["step"] == 1
    assert "nats a token" in caplog.text


def test_prompts_are_looked_for_before_the_model_and_a_hub_that_cannot_be_reached_leaves_no_run(rlx, small, tmp_path):
    words = ["rollout.engine=hf", "model.path=nobody/nothing", "trainer.experiment_name=run"]
    done = rlx("train", "gsm8k-grpo", *words, f"data.train_files={tmp_path}/none.parquet", "data.val_files=null")
    assert done.returncode == 1 and "none.parquet" in done.stderr, done.stderr
    assert not (tmp_path / "runs" / "gsm8k" / "run").exists()
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    done = rlx(*small("smoke", model__path="nobody/nothing"), env=offline)
    assert done.returncode in (1, 3) and "nobody/nothing" in done.stderr, done.stderr
    assert not run_dir_of(tmp_path).exists()


@pytest.mark.slow
def test_a_flipped_bit_in_the_newest_checkpoint_is_seen_and_the_one_before_is_taken(rlx, small, tmp_path):
    assert rlx(*small("smoke", steps=2, trainer__save_freq=1)).returncode == 0
    newest = run_dir_of(tmp_path) / "checkpoints" / "global_step_2"
    weights = next((newest / "actor" / "weights").glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-100] ^= 0xFF
    weights.write_bytes(data)
    done = rlx("eval", str(newest))
    assert done.returncode == 1 and "checksum differs" in done.stderr, done.stderr
    done = rlx(*small("smoke", steps=3, trainer__save_freq=1), "--resume")
    assert done.returncode == 0, done.stderr
    assert "checksum differs" in done.stderr and "resumed from global_step_1" in done.stderr
    assert [line["step"] for line in records(run_dir_of(tmp_path))] == [0, 1, 2, 3]


def test_a_tokenizer_without_its_vocabulary_is_refused(rlx, small, warm_model, tmp_path):
    """transformers makes an empty tokenizer of a folder that lacks tokenizer.json, and says nothing."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in warm_model.iterdir():
        if path.name != "tokenizer.json":
            (bare / path.name).write_bytes(path.read_bytes())
    done = rlx(*small("smoke", model__path=bare))
    assert done.returncode == 1 and str(bare) in done.stderr and "hint:" in done.stderr, done.stderr
    assert not run_dir_of(tmp_path).exists()


def test_a_model_without_a_chat_template_is_told_in_a_line_and_a_hint(rlx, small, warm_model, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in warm_model.iterdir():
        if path.name != "chat_template.jinja":
            (bare / path.name).write_bytes(path.read_bytes())
    done = rlx(*small("smoke", model__path=bare))
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-2:] == [
        f"error: tokenizer '{bare}' has no chat template",
        "hint: use an instruct model, or set model.custom_chat_template",
    ]
    assert not run_dir_of(tmp_path).exists()


@pytest.mark.parametrize("closed", [">&- <&-", pytest.param("2>&-", marks=pytest.mark.slow)])
def test_a_closed_stream_costs_no_run(small, tmp_path, closed):
    command = shlex.join([sys.executable, "-m", "rlx", *small("smoke", steps=1)])
    done = subprocess.run(["bash", "-c", f"{command} {closed}"], cwd=tmp_path, env=command_variables({}), timeout=200)
    assert done.returncode == 0
    assert records(run_dir_of(tmp_path))[-1]["step"] == 1
