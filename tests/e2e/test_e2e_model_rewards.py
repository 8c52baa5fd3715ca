"""Runs that a model scores: a reward model that a run has trained and `rlx merge` written, and a judge."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from tests.e2e.conftest import run_dir_of, same_after_a_stop
from tests.rewards.judge_server import Handler, answer_of, served, verdict
from verl_core.checkpoint.merge import merge, plan_merge
from verl_core.config.compose import resolve
from verl_core.config.errors import RunError, UserError
from verl_core.config.write import dump
from verl_core.controller import eval_job
from verl_core.controller.job import find_frozen
from verl_core.data.dataset import PromptDataset
from verl_core.tracking.registry import check_known

BOTH = "{task: 1, reward_model: 0.5}"


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reward model of this module's tests lies, once the first of them has trained it."""
    return tmp_path_factory.mktemp("reward_model") / "merged"


@pytest.fixture
def reward_model(merged: Path, train_here, small, tmp_path: Path) -> Path:
    if not merged.exists():
        train_here(
            small("smoke-rm", steps=1, trainer__save_freq=-1, trainer__test_freq=0, trainer__experiment_name="rm")
        )
        merge(plan_merge(run_dir_of(tmp_path, "rm"), merged, role="reward_model"))
    return merged


def rollouts(run_dir: Path, step: int) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "rollouts" / f"step_{step}.jsonl").read_text().splitlines()]


def outputs(folder: Path, prompts: dict[str, list[dict]], rows: list[dict]) -> list[float]:
    """What transformers says of the answers."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForTokenClassification.from_pretrained(folder)
    found = []
    for row in rows:
        turns = [*prompts[row["group"]], {"role": "assistant", "content": row["answer"]}]
        text = tokenizer.apply_chat_template(turns, tokenize=False).rstrip()
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits
        found.append(float(logits[0, -1, 0]))
    return found


@pytest.mark.slow
def test_a_merged_reward_model_is_half_of_the_reward_also_after_a_stop_and_in_eval(
    train_here, small, reward_model, tmp_path: Path, capsys
):
    keys = {"reward__scorers": BOTH, "reward__reward_model__path": reward_model, "trainer__log_rollouts": -1}
    words = small("smoke", steps=2, trainer__save_freq=1, trainer__test_freq=2, data__val_max_samples=5, **keys)
    lines = same_after_a_stop(train_here, words, until=1)
    check_known({name for line in lines for name in line} - {"step"})
    config = resolve("smoke", words[2:]).config
    tokenizer = AutoTokenizer.from_pretrained(config.model.path)
    dataset = PromptDataset(config.data.train_files, config.data, tokenizer, "train", config.trainer.seed)
    prompts = {row.uid: row.prompt for row in dataset.take(range(len(dataset)))}
    rows = rollouts(run_dir_of(tmp_path), 2)
    expected = outputs(reward_model, prompts, rows)
    task = [float(row["pred"] == row["ground_truth"]) for row in rows]
    assert [row["reward"] for row in rows] == pytest.approx(
        [t + 0.5 * e for t, e in zip(task, expected, strict=True)], abs=1e-4
    )
    assert lines[-1]["reward/reward_model/mean"] == pytest.approx(sum(expected) / len(expected), abs=1e-4)
    assert lines[-1]["reward/reward_model/failed"] == 0 and lines[-1]["critic/score/mean"] == pytest.approx(
        sum(row["reward"] for row in rows) / len(rows)
    )
    timed = json.loads((run_dir_of(tmp_path) / "metrics.jsonl").read_text().splitlines()[-1])
    assert timed["timing_s/reward_model"] > 0
    run_dir = run_dir_of(tmp_path)
    assert eval_job.main([str(run_dir), "--config", str(run_dir / "config.yaml"), "--json"]) == 0
    name = "val/test_score/rlx/show-your-work"
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"][name] == lines[-1][name]


@pytest.mark.slow
def test_on_a_pool_of_its_own_it_says_the_same(train_here, small, reward_model):
    keys = {"reward__scorers": "{reward_model: 1}", "reward__reward_model__path": reward_model}
    words = small("smoke", steps=1, trainer__save_freq=0, trainer__test_freq=1, data__val_max_samples=1, **keys)
    pools = ["cluster.pools={main: {gpus: 1}, scores: {gpus: 1}}", "reward.reward_model.pool=scores"]
    alone = train_here([*words, "trainer.experiment_name=alone"])
    apart = train_here([*words, *pools])
    names = [name for name in alone[-1] if name.startswith(("critic/score", "reward/", "val/test_score"))]
    assert len(names) > 4 and {n: apart[-1][n] for n in names} == pytest.approx(
        {n: alone[-1][n] for n in names}, abs=1e-5
    )


@pytest.mark.slow
def test_a_judge_scores_training_and_evaluation_and_is_asked_once(train_here, small, warm_model, tmp_path, capsys):
    def mark(answer: str) -> float | None:
        return None if len(answer) % 5 == 0 else len(answer) % 5 / 5

    def play(handler: Handler, body: dict) -> None:
        """Judges by the length, and has no opinion of some."""
        number = mark(answer_of(body["messages"][0]["content"]))
        handler.reply("Hm.") if number is None else verdict(handler, body, f"{number:g}")

    with served(play) as server:
        keys = {"reward__scorers": "{judge: 1}", "reward__judge__url": server.url, "reward__judge__model": "m"}
        keys |= {"reward__judge__scale": "[0, 1]", "trainer__log_rollouts": -1, "trainer__val_before_train": "false"}
        words = small("smoke", steps=1, trainer__save_freq=0, trainer__test_freq=0, **keys)
        first = train_here(words)
        for row in rollouts(run_dir_of(tmp_path), 1):
            number = mark(row["answer"])
            assert row["reward"] == pytest.approx(number or 0) and bool(row["score_error"]) == (number is None)
        asked = len(server.bodies)
        cache = run_dir_of(tmp_path) / "judge_cache.sqlite"
        failed = first[-1]["reward/judge/failed"]
        again = train_here([*words, "trainer.experiment_name=again", f"reward.judge.cache={cache}"])
        assert again == first and 0 < len(server.bodies) - asked <= failed < asked

        config = tmp_path / "config.yaml"
        judged = [word for word in words if word.startswith("reward.")]
        config.write_text(dump(resolve("smoke", ["data.val_max_samples=4", *judged]).config))
        assert eval_job.main([str(warm_model), "--config", str(config), "--json"]) == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert 0 < said["metrics"]["val/test_score/rlx/show-your-work"] < 1


@pytest.mark.slow
def test_a_judge_that_never_answers_ends_the_run_and_a_policy_is_no_reward_model(train_here, small, warm_model):
    with served(lambda handler, body: handler.send(b"", 401)) as server:
        keys = {"reward__scorers": "{judge: 1}", "reward__judge__url": server.url, "reward__judge__model": "m"}
        with pytest.raises(RunError, match="the judge's endpoint answered with status 401"):
            train_here(small("smoke", steps=1, trainer__test_freq=0, **keys))
    words = ["reward.scorers={reward_model: 1}", f"reward.reward_model.path={warm_model}"]
    with pytest.raises(UserError, match=r"^reward\.reward_model\.path: .* is no reward model: no weights score"):
        find_frozen(resolve("smoke", words).config)
