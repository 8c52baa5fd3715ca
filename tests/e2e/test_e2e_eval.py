"""`rlx eval` on the builtin model: what it prints is what its answers say, a killed one goes on bit for bit, two are
compared, and what is wrong is said before anything is generated."""

import asyncio
import json
import signal
import time
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_core.config import write
from verl_core.config.compose import resolve
from verl_core.config.errors import RunError, UserError
from verl_core.controller import eval_job

SOURCE = "rlx/show-your-work"
SAMPLED = ("--n", "4", "--temperature", "1", "--limit", "20")
SAMPLED_KEYS = ("rollout.val_kwargs.n=4", "rollout.val_kwargs.temperature=1.0", "rollout.val_kwargs.do_sample=true")
SMALL_BATCHES = "rollout.max_num_seqs=8"  # chunks of 4 questions


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def job(tmp_path: Path, warm_model: Path, capsys: pytest.CaptureFixture[str]):
    """The job in this process: `job(SOURCE..., key=value, --option, ...)`, its JSON."""

    def run(*words: str) -> dict:
        settings = [word for word in words if "=" in word]
        config = tmp_path / "config.yaml"
        config.write_text(write.dump(resolve("smoke", ["data.val_max_samples=12", *settings]).config))
        rest = [word for word in words if word not in settings]
        sources = next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))
        named = rest[:sources] or [str(warm_model)]
        assert eval_job.main([*named, *["--config", str(config)] * len(named), *rest[sources:], "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_the_measures_are_what_the_kept_answers_say(rlx, warm_model: Path, tmp_path: Path):
    done = rlx("eval", str(warm_model), "smoke", *SAMPLED, "--out", "a.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    rows = lines(tmp_path / "a.jsonl")
    assert said["answers"] == len(rows) == 80
    by_question = defaultdict(list)
    for row in rows:
        by_question[row["question"]].append(row)
        assert row["reward"] == float(row["pred"] == row["ground_truth"])
        assert row["tokens"] <= 24 and row["finish"] in ("stop", "length") and row["source"] == str(warm_model)
    assert len({row["seed"] for row in rows}) == 80
    rewards = [[row["reward"] for row in own] for own in by_question.values()]
    own = said["statistics"][SOURCE]
    assert own["mean"] == pytest.approx(fmean(map(fmean, rewards)))
    for k in (1, 2, 4):
        best = fmean(fmean(max(few) for few in combinations(r, k)) for r in rewards)
        assert own["best"][str(k)] == pytest.approx(best) == pytest.approx(own["pass"][str(k)])
    assert own["ci95"][0] <= own["mean"] <= own["ci95"][1]
    assert said["metrics"][f"val-core/{SOURCE}/reward/best@4"] == own["best"]["4"]
    assert said["metrics"][f"val-core/{SOURCE}/reward/maj@4"] == own["maj"]
    assert own["length"] == fmean(row["tokens"] for row in rows)


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_and_ends_as_one_that_was_not(
    start, job, warm_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    keys = ("data.val_max_samples=100", *SAMPLED_KEYS, SMALL_BATCHES)
    unbroken = job(*keys, "--out", str(tmp_path / "whole.jsonl"))
    out = tmp_path / "killed.jsonl"
    process = start("eval", str(warm_model), "smoke", *keys, "--out", str(out))
    deadline = time.monotonic() + 120
    while not (out.exists() and out.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    written = out.read_bytes()
    whole = (tmp_path / "whole.jsonl").read_bytes()
    assert written and len(written) < len(whole)
    out.write_bytes(written + b'{"source": "torn')  # and as if it had been killed within a line

    answer, went_on_after = eval_job._answer, []

    async def watched(candidate, groups, *rest):
        went_on_after.append(len(groups))
        await answer(candidate, groups, *rest)

    monkeypatch.setattr(eval_job, "_answer", watched)
    assert job(*keys, "--out", str(out)) == unbroken
    assert went_on_after == [written.count(b"\n") // 4]
    assert out.read_bytes() == whole


def test_a_finished_file_is_read_and_nothing_is_generated(job, tmp_path: Path, monkeypatch):
    out = str(tmp_path / "a.jsonl")
    first = job("--out", out)

    async def never(*_: object) -> None:
        raise AssertionError("generated again")

    monkeypatch.setattr(eval_job, "_answer", never)
    assert job("--out", out) == first
    with pytest.raises(UserError, match="made with other prompts"):
        job("--out", out, "data.val_max_samples=13")
    with pytest.raises(UserError, match="made with other sampling"):
        job("--out", out, "data.max_response_length=9")
    with pytest.raises(UserError, match="made with other scoring"):
        job("--out", out, "reward.timeout_s=3")


def test_two_sources_are_compared_question_by_question(job, warm_model: Path, tmp_path: Path):
    other = AutoModelForCausalLM.from_pretrained(warm_model)
    with torch.no_grad():
        other.model.layers[0].mlp.down_proj.weight.mul_(0.5)
    worse = str(tmp_path / "worse")
    other.save_pretrained(worse)
    AutoTokenizer.from_pretrained(warm_model).save_pretrained(worse)
    said = job(str(warm_model), worse, *SAMPLED_KEYS, "--out", str(tmp_path / "a.jsonl"))
    rewards: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in lines(tmp_path / "a.jsonl"):
        rewards[row["source"]][row["question"]].append(row["reward"])
    first, second = rewards[str(warm_model)], rewards[worse]
    differences = [fmean(second[q]) - fmean(first[q]) for q in first]
    [pair] = said["differences"]
    assert (pair["of"], pair["to"]) == (worse, str(warm_model))
    own = pair["difference"][SOURCE]
    assert own["mean"] == pytest.approx(fmean(differences)) and own["questions"] == 12
    assert own["better"] == sum(d > 0 for d in differences) and own["worse"] == sum(d < 0 for d in differences) > 0
    assert [each["answers"] for each in said["sources"]] == [48, 48]


def test_the_same_weights_twice_are_refused(job, warm_model: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(warm_model)
    with pytest.raises(UserError, match="are the same weights"):
        job(str(warm_model), str(tmp_path / "link"))


def test_rules_that_fail_are_counted_apart_from_wrong_answers(job, tmp_path: Path):
    (tmp_path / "rule.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    if int(ground_truth) % 2:\n        raise RuntimeError('odd')\n    return 0.0\n"
    )
    said = job(f"reward.custom_reward_function.path={tmp_path}/rule.py", "--out", str(tmp_path / "a.jsonl"))
    odd = fmean(int(row["ground_truth"]) % 2 for row in lines(tmp_path / "a.jsonl"))
    assert 0 < said["statistics"][SOURCE]["failed"] == odd < 1
    assert said["statistics"][SOURCE]["mean"] == 0


def test_the_seed_changes_the_answers_and_not_the_questions(job, tmp_path: Path):
    sampled = ("rollout.val_kwargs.do_sample=true", "rollout.val_kwargs.temperature=1.0")
    for seed in ("1", "1", "2"):
        job(*sampled, "--seed", seed, "--out", str(tmp_path / f"{seed}.jsonl"))
    one, two = lines(tmp_path / "1.jsonl"), lines(tmp_path / "2.jsonl")
    assert [row["prompt"] for row in one] == [row["prompt"] for row in two]
    assert [row["answer"] for row in one] != [row["answer"] for row in two]


def test_what_is_wrong_is_said_before_an_answer_is_made(job, tmp_path: Path, monkeypatch):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UserError, match="no val prompts in"):
        job("--data", str(tmp_path / "empty.jsonl"))
    with pytest.raises(UserError, match=r"nowhere\.jsonl"):
        job("--data", str(tmp_path / "nowhere.jsonl"))
    row = {
        "data_source": "nobody/knows",
        "prompt": [{"role": "user", "content": "?"}],
        "reward_model": {"ground_truth": "1"},
    }
    (tmp_path / "unknown.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr("verl_core.controller.validate.Validator.answer", lambda *_: asyncio.sleep(60))
    with pytest.raises(UserError, match="nobody/knows"):
        job("--data", str(tmp_path / "unknown.jsonl"))
    with pytest.raises(UserError, match="1064 tokens, but the model takes 512"):
        job("data.max_response_length=1000")
    half = tmp_path / "run" / "checkpoints" / "global_step_3"
    (half / "actor" / "weights").mkdir(parents=True)
    with pytest.raises(UserError, match=r"global_step_3.*did not finish"):
        job(str(half))
    with pytest.raises(UserError, match=r"global_step_3.*did not finish"):
        job(str(tmp_path / "run"))


def test_a_full_disk_ends_it_with_the_files_name(job):
    with pytest.raises(RunError, match="no space left for /dev/full"):
        job("--out", "/dev/full")
