"""What `rlx eval` makes of its words before it becomes the job."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from rlx import eval_sources, jobs
from rlx.commands.eval import app
from verl_core.config import unbuilt, write
from verl_core.config.compose import resolve
from verl_core.config.errors import UserError
from verl_core.config.schema import RlxConfig

Job = tuple[list[str], list[RlxConfig], list[str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run, a model folder and data, with HOME and cache inside."""
    run = tmp_path / "runs" / "smoke" / "one"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    config = resolve("smoke", ["model.path=builtin:show-your-work", "rollout.val_kwargs.n=1"]).config
    (run / "config.yaml").write_text(write.dump(config))
    (tmp_path / "model").mkdir()
    (tmp_path / "questions.jsonl").write_text(json.dumps({}) + "\n")
    for name in ("HOME", "RLX_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def job(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the command and returns what the job would be given: sources, configurations, other words."""

    def run(*words: str) -> Job:
        given: list[str] = []
        monkeypatch.setattr(jobs, "become", lambda job, args, extras, **_: given.extend(args))
        CliRunner().invoke(app, list(words), catch_exceptions=False)
        first = next(i for i, word in enumerate(given) if word.startswith("-"))
        configs = [write.load(Path(given[i + 1])) for i, word in enumerate(given) if word == "--config"]
        rest = given[first:]
        while "--config" in rest:
            del rest[rest.index("--config") : rest.index("--config") + 2]
        return given[:first], configs, rest

    return run


def test_options_are_settings_that_win(job):
    words = [
        "--n",
        "8",
        "--temperature",
        "0.7",
        "--top-p",
        "0.9",
        "--top-k",
        "20",
        "--max-tokens",
        "33",
        "--limit",
        "5",
    ]
    sources, [config], rest = job("runs/smoke/one", "rollout.val_kwargs.n=2", *words)
    val = config.rollout.val_kwargs
    assert (val.n, val.temperature, val.top_p, val.top_k, val.do_sample) == (8, 0.7, 0.9, 20, True)
    assert (config.data.max_response_length, config.data.val_max_samples) == (33, 5)
    assert (sources, rest) == (["runs/smoke/one"], [])
    _, [config], _ = job("runs/smoke/one", "--temperature", "0")
    assert config.rollout.val_kwargs.do_sample is False


def test_the_seed_of_the_draws_is_not_the_one_that_chooses_the_questions(job):
    """trainer.seed splits the builtin problems: with another one, a run would be scored on what it was trained on."""
    _, [config], rest = job("runs/smoke/one", "--seed", "9")
    assert config.trainer.seed == 0 and rest == ["--seed", "9"]


def test_sources_and_a_profile_are_told_apart(job, folder):
    (folder / "smoke").mkdir()  # a profile's name is the profile
    sources, configs, _ = job("model", "smoke", "runs/smoke/one", "some/model")
    assert sources == ["model", "runs/smoke/one", "some/model"]
    assert len(configs) == 3 and configs[0] == configs[1] == configs[2]
    assert job("./smoke", "--profile", "smoke")[0] == ["./smoke"]


def test_each_run_is_compared_with_its_own_model_section_and_the_first_ones_prompts(job, folder):
    other = folder / "runs" / "smoke" / "two"
    other.mkdir()
    (other / "run.json").write_text("{}")
    config = resolve("smoke", ["model.lora_rank=4", "rollout.val_kwargs.n=4", "data.max_prompt_length=99"]).config
    (other / "config.yaml").write_text(write.dump(config))
    sources, [first, second, third], _ = job("runs/smoke/one", "runs/smoke/two", "./model")
    assert sources == ["runs/smoke/one", "runs/smoke/two", "./model"]
    assert (first.model.lora_rank, second.model.lora_rank, third.model.lora_rank) == (0, 4, 0)
    assert first.data == second.data == third.data and second.rollout == first.rollout
    assert job("model", "runs/smoke/two")[1][0].rollout.val_kwargs.n == 4  # the first run's, wherever it stands


def test_data_is_a_file_or_a_prepared_data_set(job, folder):
    prepared = folder / "HOME" / "data" / "gsm8k"
    prepared.mkdir(parents=True)
    (prepared / "test.parquet").touch()
    _, _, rest = job("model", "smoke", "--data", "questions.jsonl", "--data", "gsm8k", "--out", "a.jsonl", "--json")
    assert rest == ["--data", "questions.jsonl", "--data", str(prepared), "--out", "a.jsonl", "--json"]
    assert eval_sources.prompts("builtin:show-your-work") == "builtin:show-your-work"


def test_a_file_of_settings_takes_the_place_of_the_runs(job, folder):
    (folder / "mine.yaml").write_text("extends: smoke\nrollout: {val_kwargs: {n: 3}}\n")
    assert job("runs/smoke/one", "-f", "mine.yaml")[1][0].rollout.val_kwargs.n == 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["model", "smoke", "--n", "0"], 2, "'--n'"),
        (["model", "smoke", "rollout.val_kwargs.n=0"], 1, "rollout.val_kwargs.n"),
        (["model", "smoke", "--temperature", "-1"], 2, "--temperature"),
        (["model", "smoke", "--temperature", "1", "--top-p", "0"], 1, "rollout.val_kwargs.top_p"),
        (["model", "smoke", "--n", "4"], 1, "--n 4 says nothing about greedy answers"),
        (["model", "smoke", "--top-k", "4"], 1, "hint: --temperature 1"),
        (["model", "smoke", "--engine", "warp"], 1, "warp"),
        (["model", "smoke", "--data", "gsm8k"], 1, "hint: rlx prepare gsm8k"),
        (["model", "smoke", "--data", "gsm9k"], 1, "--data gsm9k does not exist"),
        (["model", "./nowhere/run", "smoke"], 1, "./nowhere/run"),
        (["model", "smoke", "smoke-ppo"], 2, "smoke-ppo"),
    ],
)
def test_bad_words_are_refused_at_once(rlx, folder, words, code, said):
    done = rlx("eval", *words, env={"RLX_ENVS": str(folder / "envs"), "RLX_PYTHON": None})
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (folder / "envs").exists()


def test_what_is_not_built_is_refused_as_train_does(job, monkeypatch):
    monkeypatch.setattr(unbuilt, "entry", lambda kind, name: SimpleNamespace(built=False))
    with pytest.raises(UserError, match=r"algorithm\.name=grpo comes with a later release"):
        job("model", "smoke", "--engine", "hf")
