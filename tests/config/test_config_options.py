"""Faults that other systems had with options (the letters are those of test_config_cases.py), and rlx's own."""

import json
import pickle

import pytest
from typer.testing import CliRunner

from rlx import rundir
from rlx.main import app
from verl_core.config import write
from verl_core.config.compose import profile_names, resolve
from verl_core.config.effective import effective
from verl_core.config.errors import ConfigError
from verl_core.config.key_checks import PATHS
from verl_core.config.schema import FACTS, RlxConfig
from verl_core.config.typed import leaves, plain


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_that_takes_options_reads_them_with_one_loader(rlx, tmp_path):
    """C15: a file with some keys only has the schema's defaults for the others, for the command and for the job."""
    (tmp_path / "part.yaml").write_text("trainer: {seed: 4}\n")
    job = write.load(tmp_path / "part.yaml")
    assert job == RlxConfig(trainer=type(job.trainer)(seed=4))
    for words in (
        ["config", "show"],
        ["profile", "show"],
        ["train", "--dry-run"],
        ["config", "check"],
        ["config", "diff", "smoke"],
    ):
        done = rlx(*words, "./part.yaml", "rollout.engin=hf")
        assert done.returncode == 1 and "rollout.engin" in done.stderr, words
        assert "did you mean rollout.engine?" in done.stderr


def test_a_bad_choice_is_refused_with_the_choices(rlx):
    """C14"""
    done = rlx("config", "show", "smoke", "trainer.logger=[console, wandbb]")
    assert done.returncode == 1
    assert "trainer.logger[1]='wandbb'" in done.stderr and "console, jsonl, tensorboard, wandb" in done.stderr
    assert "did you mean wandb?" in done.stderr


def test_a_misspelt_key_is_refused_wherever_it_stands(rlx, tmp_path):
    """C3"""
    (tmp_path / "rlx.yaml").write_text("extends: smoke\ndata: {subset: socratic}\nactor: {lrr: 1e-6}\n")
    done = rlx("config", "check")
    assert done.returncode == 1
    assert "data.subset='socratic' (rlx.yaml): no such key; did you mean data." in done.stderr
    assert "actor.lrr=1e-06 (rlx.yaml): no such key; did you mean actor.optim.lr" in done.stderr
    plus = rlx("config", "check", "smoke", "+actor_rollout_ref.actor.lrr=1", "+cluster.nprok=2")
    assert "actor.lrr=1" in plus.stderr and "keys here need no +" in plus.stderr


def test_nulls_survive_writing_and_start_the_same_run(here):
    """C2"""
    words = [
        "data.val_files=null",
        "trainer.total_training_steps=null",
        "actor.use_kl_loss=null",
        "trainer.num_threads=null",
    ]
    first = resolve("smoke", words)
    run = rundir.start(first, False, environment="somewhere")
    again = resolve(None, file=run / "config.yaml")
    asked = write.of_run(first.config)
    assert again.config == asked and effective(again.config) == effective(asked)
    assert (run / "config.yaml").read_text().count("val_files: null") == 1
    assert write.dump(again.config) == (run / "config.yaml").read_text()


def test_a_run_carries_no_figures_of_its_profile(here):
    """Memory and time stand for the profile's own values, not for a run with others; nothing else is lost."""
    first = resolve("gsm8k-ppo", ["rollout.n=64"])
    run = rundir.start(first, False, environment="somewhere")
    written = write.load(run / "config.yaml")
    assert [key for key, value in leaves(plain(first.config)) if dict(leaves(plain(written)))[key] != value] == [*FACTS]
    recorded = json.loads((run / "origins.json").read_text())
    assert recorded.keys() == first.origins.keys() - {*FACTS}
    assert rundir.changes(run, first) == []
    (run / "config.yaml").write_text(write.dump(first.config))  # of an earlier release
    assert rundir.changes(run, first) == []
    done = CliRunner().invoke(app, ["config", "diff", "gsm8k-ppo", str(run), "--json"])
    assert json.loads(done.stdout).keys() == {"rollout.n", "trainer.experiment_name"}


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        *((name, []) for name in profile_names()),
        ("smoke-ppo", ["cluster.nproc=2"]),
        ("gsm8k-ppo", ["cluster.nnodes=2", "cluster.n_gpus_per_node=4"]),
    ],
)
def test_a_written_configuration_asks_for_nothing_it_did_not_ask_for_before(here, profile, words):
    resolved = resolve(profile, words)
    for config_ in (resolved.config, effective(resolved.config)):
        (here / "config.yaml").write_text(write.dump(config_), encoding="utf-8")
        again = resolve(None, file=here / "config.yaml")
        assert again.warnings == resolved.warnings == []
        assert effective(again.config) == effective(resolved.config)


def test_a_slip_in_a_written_configuration_is_still_one(here):
    text = write.dump(resolve("smoke").config)
    (here / "config.yaml").write_text(text.replace("kl_loss_coef: 0.001", "kl_loss_coef: 0.5"))
    (warning,) = resolve(None, file=here / "config.yaml").warnings
    assert warning.startswith("actor.kl_loss_coef (") and "actor.use_kl_loss=true" in warning
    (above,) = resolve(None, ["actor.kl_loss_coef=0.001"], here / "config.yaml").warnings
    assert above.startswith("actor.kl_loss_coef (command line)")


def test_null_is_a_seed_only_where_it_means_something():
    """C7: data.seed=null is trainer.seed; trainer.seed itself is always a number."""
    assert effective(resolve("smoke", ["data.seed=null", "trainer.seed=3"]).config).data.seed == 3
    with pytest.raises(ConfigError, match=r"trainer.seed=null.*expected a whole number"):
        resolve("smoke", ["trainer.seed=null"])


def test_environment_variables_stay_text(here, monkeypatch):
    """C8"""
    (here / "rlx.yaml").write_text("extends: smoke\nlaunch: {env: {A: '0', B: 'true'}}\n")
    monkeypatch.setenv("RUN", "007")
    words = ["launch.env.C=1e3", "launch.env.D='null'", "trainer.experiment_name=${oc.env:RUN}"]
    found = resolve(None, words).config
    assert found.launch.env == {"A": "0", "B": "true", "C": "1e3", "D": "null"}
    assert found.trainer.experiment_name == "007"
    (here / "again.yaml").write_text(write.dump(found))
    assert resolve(None, file=here / "again.yaml").config == found
    (here / "rlx.yaml").write_text("extends: smoke\nlaunch: {env: {A: 0}}\n")
    with pytest.raises(ConfigError, match=r"launch.env.A=0.*expected text.*quote it"):
        resolve(None)


def test_off_is_off_in_every_section_that_follows():
    """C10"""
    words = [
        "model.enable_gradient_checkpointing=false",
        "rollout.val_kwargs.do_sample=false",
        "trainer.logger=[console]",
    ]
    e = effective(resolve("gsm8k-ppo", words).config)
    assert e.model.enable_gradient_checkpointing is False
    assert e.critic.model.enable_gradient_checkpointing is False
    assert e.rollout.val_kwargs.do_sample is False and e.trainer.logger == ["console"]


def test_a_file_overrides_defaults_and_the_command_line_the_file(here):
    """C11, for a switch whose default is on and one whose default is off."""
    (here / "rlx.yaml").write_text("extends: smoke\ndata: {shuffle: false}\nactor: {shuffle: true}\n")
    assert (resolve(None).config.data.shuffle, resolve(None).config.actor.shuffle) == (False, True)
    above = resolve(None, ["data.shuffle=true", "actor.shuffle=false"]).config
    assert (above.data.shuffle, above.actor.shuffle) == (True, False)


@pytest.mark.parametrize(
    ("word", "place"),
    [
        ("actor.lr=1e-6", "actor.optim.lr"),
        ("data.n=3", "rollout.n"),
        ("trainer.nproc=2", "cluster.nproc"),
        ("trainer.max_model_len=9", "rollout.max_model_len"),
    ],
)
def test_a_key_that_stands_elsewhere_is_refused_with_its_place(word, place):
    """C18"""
    with pytest.raises(ConfigError, match=f"no such key; did you mean .*{place}"):
        resolve("smoke", [word])


@pytest.mark.parametrize("word", ["model.path=", "model.path=''", "rollout.stop=['']", "actor.pool="])
def test_names_that_are_empty_are_refused(word):
    with pytest.raises(ConfigError, match="expected text that is not empty"):
        resolve("smoke", [word])


def test_what_may_be_empty():
    words = ["purpose=", "launch.env.A=", "model.tokenizer_path=", "reward.reward_kwargs.a=''"]
    found = resolve("smoke", words).config
    assert (found.purpose, found.launch.env, found.model.tokenizer_path) == ("", {"A": ""}, None)


def test_an_empty_mapping_changes_nothing_and_claims_nothing(here):
    (here / "rlx.yaml").write_text("extends: smoke\nreward: {reward_kwargs: {method: flexible}}\n")
    resolved = resolve(None, ["reward.reward_kwargs={}"])
    assert resolved.config.reward.reward_kwargs == {"method": "flexible"}
    assert resolved.origins["reward.reward_kwargs.method"] == "rlx.yaml"


def test_the_origin_of_what_an_interpolation_brings_is_who_wrote_it(here):
    (here / "rlx.yaml").write_text("extends: smoke\nlaunch: {env: {A: x}}\nreward: {reward_kwargs: '${launch.env}'}\n")
    resolved = resolve(None, ["warmup.phases[0].steps=3"])
    assert resolved.config.reward.reward_kwargs == {"A": "x"}
    assert resolved.origins["reward.reward_kwargs.A"] == "rlx.yaml"
    assert resolved.origins["warmup.phases"] == "command line"


def test_problems_survive_the_way_out_of_another_process():
    error = ConfigError(["a", "b"], "a hint")
    again = pickle.loads(pickle.dumps(error))
    assert (again.problems, again.message, again.hint) == (["a", "b"], error.message, "a hint")
    assert error.message == "2 problems in the configuration:\n  a\n  b" and ConfigError(["a"], "").message == "a"


@pytest.mark.parametrize(
    "word", ["trainer.project_name=\udcff", "launch.env.A=\udcff", "reward.reward_kwargs={a: \udcff}"]
)
def test_bytes_that_are_no_text_are_refused(word):
    with pytest.raises(ConfigError, match=r"UTF-8|not a YAML value"):
        resolve("smoke", [word])


@pytest.mark.parametrize("key", PATHS)
@pytest.mark.parametrize(
    ("path", "fault"),
    [("~nobody-of-this-name/x", "no user has the home"), ("x" * 256, "too long"), ("a/" * 2048 + "a", "too long")],
)
def test_paths_that_cannot_be_are_refused(key, path, fault):
    with pytest.raises(ConfigError, match=fault):
        resolve("smoke-ppo", [f"{key}={path}"])


def test_the_home_of_nobody_is_no_fault_of_ours(rlx, tmp_path):
    (tmp_path / "z.yaml").write_text("extends: ~nobody-of-this-name/y.yaml\n")
    for words in (
        ["config", "check", "z.yaml"],
        ["config", "show", "~nobody-of-this-name/x.yaml"],
        ["profile", "cp", "smoke", "~nobody-of-this-name"],
        ["merge", "~nobody-of-this-name/run", "--out", "x"],
        ["eval", "~nobody-of-this-name/run"],
        ["config", "import", "~nobody-of-this-name/run.sh"],
    ):
        done = rlx(*words)
        assert done.returncode == 1 and "no user has the home ~nobody-of-this-name" in done.stderr, words
