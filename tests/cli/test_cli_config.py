"""`rlx config`: show, check, schema, diff, explain."""

import json

import pytest
from typer.testing import CliRunner

from rlx import rundir
from rlx.main import app
from verl_core.config import write
from verl_core.config.compose import profile_names, resolve
from verl_core.config.effective import effective
from verl_core.config.errors import ConfigError
from verl_core.config.json_schema import json_schema
from verl_core.config.typed import leaf_types, plain

KL_ALONE = "actor.kl_loss_coef=0.1"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(*words: str):
    """`rlx config ...` in this process; errors that a user causes end as the command ends them."""
    done = CliRunner().invoke(app, ["config", *words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


# --- show


def test_shown_yaml_is_the_configuration_and_starts_the_same_run(rlx, tmp_path):
    words = ["smoke", "data.seed=null", "trainer.parity=off", "launch.env.A=007"]
    shown = rlx("config", "show", *words)
    assert (shown.returncode, shown.stderr) == (0, "")
    file = tmp_path / "again.yaml"
    file.write_text(shown.stdout, encoding="utf-8")
    expected = resolve("smoke", words[1:]).config
    assert write.load(file) == expected == resolve(None, file=file).config
    assert "seed: null" in shown.stdout
    assert resolve(None, file=file, strict=True).warnings == []


@pytest.mark.parametrize("flags", [["--origin"], ["--effective"], ["--origin", "--effective"]])
@pytest.mark.parametrize("profile", ["smoke", "gsm8k-ppo", "256-gpu-grpo"])
def test_comments_change_no_value(here, profile, flags):
    shown = config("show", profile, *flags).stdout
    resolved = resolve(profile)
    meant = effective(resolved.config) if "--effective" in flags else resolved.config
    (here / "shown.yaml").write_text(shown, encoding="utf-8")
    assert write.load(here / "shown.yaml") == meant
    again = resolve(None, file=here / "shown.yaml", strict=True)
    assert effective(again.config) == effective(resolved.config)


def test_every_value_says_where_it_came_from(here):
    (here / "rlx.yaml").write_text("extends: smoke\ntrainer: {seed: 1, log_rollouts: 2}\n")
    lines = config("show", "--origin", "trainer.log_rollouts=3").stdout.splitlines()
    for line, origin in (
        ("  seed: 1 ", "rlx.yaml"),
        ("  log_rollouts: 3 ", "command line"),
        ("  train_batch_size: 16 ", "profile smoke"),
        ("  ignore_eos: false ", "default"),
    ):
        assert [each.partition("# ")[2] for each in lines if each.startswith(line)] == [origin], line
    values = json.loads(config("show", "--origin", "--json").stdout)
    assert values["trainer.seed"] == {"value": 1, "origin": "rlx.yaml"}
    assert set(values) == set(leaf_types()) and all(each["origin"] for each in values.values())


def test_derived_values_name_their_rule(here):
    lines = config("show", "smoke", "--effective", "algorithm.name=rloo").stdout.splitlines()
    assert any(line.split() == ["max_model_len:", "88", "#", "derived:", "their", "limits'", "sum"] for line in lines)
    assert any("adv_estimator: rloo" in line and "preset of algorithm.name=rloo" in line for line in lines)
    assert not any("# " in line for line in lines[1:] if line.strip().startswith("train_batch_size"))
    values = json.loads(config("show", "smoke", "--effective", "--origin", "--json").stdout)
    assert values["weights.type"]["origin"].startswith("derived: inplace for hf")
    assert values["cluster.pools.main.gpus"] == {"value": 1, "origin": "derived: the shorthand's one pool `main`"}
    assert json.loads(config("show", "smoke", "--json").stdout) == plain(resolve("smoke").config)


def test_texts_that_take_several_lines_and_odd_keys_keep_their_comments_apart(here):
    text = "long " * 60 + "# no comment: ${x}"
    words = [
        f"purpose='{text.replace('$', chr(92) + '$')}'",
        "reward.reward_kwargs={'a: b': [1, '# x'], '': {}, k: 'a'}",
    ]
    shown = config("show", "smoke", "--origin", *words).stdout
    (here / "x.yaml").write_text(shown, encoding="utf-8")
    assert write.load(here / "x.yaml") == resolve("smoke", words).config


# --- check


def test_check_says_ok_in_a_line_each_and_warns_of_what_comes_later(rlx):
    done = rlx("config", "check", "smoke", "grpo-70b-multinode")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "ok: smoke (grpo, engine hf, builtin:show-your-work, 1 rank)",
        "ok: grpo-70b-multinode (grpo, engine vllm, Qwen/Qwen2.5-72B-Instruct, 64 ranks)",
    ]
    assert done.stderr.count("warning:") == 1 and "strategy=megatron comes with a later release" in done.stderr


@pytest.mark.parametrize("profile", profile_names())
def test_every_profile_passes(profile):
    assert config("check", profile).exit_code == 0


def test_check_reports_everything_of_every_configuration_at_once(rlx, tmp_path):
    (tmp_path / "a.yaml").write_text("extends: smoke\nactor: {lrr: 1, optim: {lr: -1}}\ndata: {subset: socratic}\n")
    (tmp_path / "b.yaml").write_text("extends: smoke\nrollout: {n: three}\nactor_rollout_ref: {rollout: {mode: x}}\n")
    done = rlx("config", "check", "a.yaml", "b.yaml", "smoke", "absent", "trainer.seed=-1")
    assert done.returncode == 1
    assert [line.split(" (")[0] for line in done.stdout.splitlines()] == [
        "not ok: a.yaml",
        "not ok: b.yaml",
        "not ok: smoke",
        "not ok: absent",
    ]
    for said in (
        "a.yaml: actor.lrr=1 (a.yaml): no such key; did you mean actor.optim.lr",
        "a.yaml: data.subset='socratic' (a.yaml): no such key; did you mean data.",
        "a.yaml: actor.optim.lr=-1.0 (a.yaml) is not in (0, inf)",
        "a.yaml: trainer.seed=-1 (command line) is not in",
        "b.yaml: rollout.n='three' (b.yaml): expected a whole number",
        "b.yaml: actor_rollout_ref.rollout.mode='x' (b.yaml): veRL's key has no counterpart",
        "smoke: trainer.seed=-1 (command line) is not in",
        "absent: no profile 'absent'",
    ):
        assert f"error: {said}" in done.stderr, said


def test_no_effect_is_an_error_unless_lenient(rlx):
    strict = rlx("config", "check", "smoke", KL_ALONE)
    assert strict.returncode == 1 and "actor.use_kl_loss=true" in strict.stderr
    lenient = rlx("config", "check", "smoke", KL_ALONE, "--lenient")
    assert lenient.returncode == 0 and "warning: smoke: actor.kl_loss_coef" in lenient.stderr


def test_check_as_json(here):
    found = json.loads(config("check", "smoke", "gsm8k-ppo", "trainer.seed=-1", "rollout.n=0", "--json").stdout)
    assert [each["name"] for each in found] == ["smoke", "gsm8k-ppo"] and not any(each["ok"] for each in found)
    assert [len(each["errors"]) for each in found] == [2, 2]
    good = json.loads(config("check", "grpo-70b-multinode", "--json").stdout)[0]
    assert good["ok"] and good["errors"] == [] and "megatron" in good["later"][0]


def test_check_without_a_name_is_the_projects_file(rlx, tmp_path):
    done = rlx("config", "check")
    assert done.returncode == 1 and "no rlx.yaml here" in done.stderr
    (tmp_path / "rlx.yaml").write_text("extends: smoke\n")
    done = rlx("config", "check")
    assert done.returncode == 0 and done.stdout.startswith("ok: rlx.yaml (grpo")


def test_arithmetic_is_not_added_to_values_that_nobody_gave(here):
    """A batch that cannot be read must not be reported as one that does not divide."""
    with pytest.raises(ConfigError) as caught:
        resolve("smoke", ["data.train_batch_size=lots", "rollout.top_p=2", "actor.ppo_mini_batch_size=5"])
    assert len(caught.value.problems) == 2
    assert "expected a whole number" in caught.value.problems[0] and "rollout.top_p=2" in caught.value.problems[1]


# --- schema


def test_schema_lists_every_key_in_120_columns(here):
    listed = config("schema").stdout.splitlines()
    assert max(map(len, listed)) <= 120
    keys = {line.split(":")[0].strip() for line in listed if line.startswith("  ") and not line.startswith("   ")}
    assert set(leaf_types()) <= keys and "cluster.pools.NAME.gpus" in keys
    below = config("schema", "actor.optim").stdout
    assert "actor.optim.lr: 1e-06  (a number in (0, inf))" in below and "critic" not in below
    assert json.loads(config("schema", "--json").stdout) == json_schema()


def test_a_slip_in_a_prefix_is_answered(rlx):
    done = rlx("config", "schema", "actor.optimm")
    assert done.returncode == 1 and "did you mean actor.optim?" in done.stderr and done.stdout == ""


# --- diff


def test_diff_names_both_values_and_origins(here):
    done = config("diff", "smoke", "trainer.seed=1", "smoke-ppo", "trainer.seed=2")
    assert done.exit_code == 0
    text = done.stdout
    assert "trainer.seed\n  - 1  (command line)\n  + 2  (command line)\n" in text
    assert "data.train_batch_size\n  - 16  (profile smoke)\n  + 32  (profile smoke-ppo)\n" in text
    found = json.loads(config("diff", "smoke", "smoke", "rollout.n=4", "--json").stdout)
    assert found == {
        "rollout.n": {"a": {"value": 8, "origin": "profile smoke"}, "b": {"value": 4, "origin": "command line"}}
    }
    pools = json.loads(config("diff", "smoke", "smoke", "cluster.pools.main.gpus=1", "--json").stdout)
    assert pools["cluster.pools.main.gpus"] == {"a": None, "b": {"value": 1, "origin": "command line"}}
    derived = json.loads(config("diff", "smoke", "smoke", "trainer.seed=4", "--effective", "--json").stdout)
    assert (
        set(derived) == {"trainer.seed", "data.seed"} and derived["data.seed"]["b"]["origin"] == "derived: trainer.seed"
    )


def test_diff_of_what_is_the_same(rlx):
    done = rlx("config", "diff", "smoke", "smoke")
    assert (done.returncode, done.stdout) == (0, "") and "same values" in done.stderr


def test_a_run_knows_where_its_values_came_from(rlx, here):
    run = rundir.start(resolve("smoke", ["trainer.seed=5", "actor.kl_loss_coef=0.2"]), False, environment="somewhere")
    found = json.loads(config("diff", "smoke", str(run), "rollout.n=2", "--json").stdout)
    assert found["trainer.seed"]["b"] == {"value": 5, "origin": "command line"}
    assert found["rollout.n"]["b"] == {"value": 2, "origin": "command line"}
    assert set(found) == {"trainer.seed", "actor.kl_loss_coef", "rollout.n", "trainer.experiment_name"}
    assert json.loads(config("check", str(run), "--lenient", "--json").stdout)[0]["ok"]
    (here / "empty").mkdir()
    done = rlx("config", "diff", "smoke", "empty")
    assert done.returncode == 1 and "neither config.yaml nor rlx.yaml" in done.stderr


@pytest.mark.parametrize("words", [["smoke"], ["a", "b", "c"], ["trainer.seed=1", "smoke", "smoke"], []])
def test_diff_takes_two(words):
    assert config("diff", *words).exit_code == 2


# --- explain


def test_explain_says_all_there_is(here):
    text = config("explain", "actor.loss_agg_mode", "smoke", "algorithm.name=dr_grpo").stdout
    assert max(map(len, text.splitlines())) <= 120
    for said in (
        "How token losses become one number",
        "type     one of token-mean",
        "default  null",
        "token-sum: Sum over all tokens",
        "veRL     actor_rollout_ref.actor.loss_agg_mode",
        "preset of algorithm.name=dr_grpo: 'seq-mean-token-sum-norm'  <- holds",
    ):
        assert said in text
    idle = config("explain", "actor.kl_loss_coef", "smoke").stdout
    assert "effect   only with actor.use_kl_loss=true" in idle and "no effect here" in idle
    assert "comes with a later release" in config("explain", "actor.strategy").stdout
    assert "here" not in config("explain", "rollout.n").stdout
    section = config("explain", "critic.optim").stdout
    assert "critic.optim.lr: 1e-05" in section


def test_explain_as_json(here):
    found = json.loads(config("explain", "rollout.n", "smoke", "rollout.n=4", "--json").stdout)
    assert (found["key"], found["default"], found["range"]) == ("rollout.n", 1, "[1, 65536]")
    assert found["here"] == {
        "value": 4,
        "steps": [
            {"origin": "default", "key": "rollout.n", "value": 1},
            {"origin": "profile smoke", "key": "rollout.n", "value": 8},
            {"origin": "command line", "key": "rollout.n", "value": 4},
        ],
        "effect": True,
    }
    assert "actor.optim.lr" in json.loads(config("explain", "actor.optim", "--json").stdout)["keys"]
    absent = json.loads(config("explain", "cluster.pools.x.gpus", "smoke", "--json").stdout)
    assert absent["here"]["value"] is None


def test_a_misspelt_key_is_answered_with_near_ones(rlx):
    done = rlx("config", "explain", "actor.optim.lrr")
    assert done.returncode == 1 and "did you mean actor.optim.lr?" in done.stderr
    assert done.stderr.count("\n") == 2


def test_a_page_names_every_part(rlx):
    done = rlx("config", "--help")
    assert all(f"\n  {name} " in done.stdout for name in ("show", "check", "schema", "diff", "explain", "import"))
    assert "Did you mean 'check'" in rlx("config", "chek").stderr
