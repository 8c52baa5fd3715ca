"""Layers, origins and error reports of `resolve`."""

from pathlib import Path

import pytest

from verl_core.config.compose import profile_names, resolve
from verl_core.config.errors import UserError

MINIMAL = "actor: {ppo_micro_batch_size_per_gpu: 4, ppo_mini_batch_size: 4}\ndata: {train_batch_size: 4}\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_later_layers_win_and_origins_say_who_did(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "base.yaml", MINIMAL + "trainer: {seed: 1, save_freq: 1, test_freq: 1, critic_warmup: 1}\n")
    write(tmp_path / "child.yaml", "extends: ./base.yaml\ntrainer: {save_freq: 2, test_freq: 2, critic_warmup: 2}\n")
    write(tmp_path / "rlx.yaml", "extends: child.yaml\ntrainer: {test_freq: 3, critic_warmup: 3}\n")
    resolved = resolve(None, ["trainer.critic_warmup=4"])
    trainer = resolved.config.trainer
    assert (trainer.seed, trainer.save_freq, trainer.test_freq, trainer.critic_warmup) == (1, 2, 3, 4)
    assert trainer.total_epochs == 30
    origins = {key: resolved.origins[f"trainer.{key}"] for key in ("seed", "save_freq", "test_freq", "critic_warmup")}
    assert origins == {
        "seed": "./base.yaml",
        "save_freq": "child.yaml",
        "test_freq": "rlx.yaml",
        "critic_warmup": "command line",
    }
    assert resolved.origins["trainer.total_epochs"] == "default"
    assert resolved.profile == "child"


def test_profile_by_name_ignores_rlx_yaml_unless_it_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rlx.yaml", "extends: smoke\ntrainer: {seed: 7}\n")
    assert resolve("smoke").config.trainer.seed == 0
    assert resolve("smoke", file=Path("rlx.yaml")).config.trainer.seed == 7
    assert resolve(None).config.trainer.seed == 7
    other = resolve("smoke-ppo", file=Path("rlx.yaml"))
    assert (other.profile, other.config.algorithm.name, other.config.trainer.seed) == ("smoke-ppo", "ppo", 7)
    assert "smoke gives way" in other.notes[0]


def test_nothing_given_lists_the_profiles(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"no profile given and no rlx\.yaml") as caught:
        resolve(None)
    assert all(name in caught.value.hint for name in profile_names())


def test_unknown_profile_names_near_ones():
    with pytest.raises(UserError, match="did you mean smoke"):
        resolve("smokee")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.yaml": "extends: b.yaml", "b.yaml": "extends: a.yaml"}, "circle: a -> b -> a"),
        ({"a.yaml": "extends: a.yaml"}, "circle"),
        ({"a.yaml": "extends: nowhere.yaml"}, "no file .*nowhere.yaml"),
        ({"a.yaml": "extends: smok"}, r"extends.*did you mean smoke"),
        ({"a.yaml": "extends: [smoke]"}, "is not the name of a profile"),
        ({"a.yaml": "- 1"}, "not a mapping"),
        ({"a.yaml": "a: [1"}, r"line \d"),
        ({"a.yaml": "trainer: {seed: 1, seed: 2}"}, "given twice"),
        ({"a.yaml": "trainer: &t {seed: 1}\nmodel: {override_config: {x: &x [*x]}}"}, "cannot read"),
    ],
)
def test_files_that_cannot_be_layers(tmp_path, files, message):
    for name, text in files.items():
        write(tmp_path / name, text)
    with pytest.raises(UserError, match=message):
        resolve(str(tmp_path / "a.yaml"))


def test_folder_and_foreign_encoding_as_a_file(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        resolve(None, file=tmp_path)
    (tmp_path / "latin.yaml").write_bytes("purpose: caf\xe9".encode("latin-1"))
    with pytest.raises(UserError, match=r"UTF-8|utf-8"):
        resolve(None, file=tmp_path / "latin.yaml")


def test_all_errors_of_all_layers_at_once(tmp_path):
    low = write(tmp_path / "low.yaml", MINIMAL + "trainer: {seeed: 1, seed: one}\n")
    high = write(tmp_path / "high.yaml", f"extends: {low}\nactor: {{optim: {{lrr: 1}}}}\ndata: 3\n")
    with pytest.raises(UserError) as caught:
        resolve(None, ["trainer.parity=offf", "trainer.seed=2"], file=high)
    first, *lines = caught.value.message.splitlines()
    assert first == "5 problems in the configuration:"
    assert [line.strip() for line in lines] == [
        f"trainer.seeed=1 ({low}): no such key; did you mean trainer.seed?",
        f"trainer.seed='one' ({low}): expected a whole number",
        f"actor.optim.lrr=1 ({high}): no such key; did you mean actor.optim.lr?",
        f"data=3 ({high}): expected a section of keys",
        "trainer.parity='offf' (command line): expected one of error, warn, off; did you mean off?",
    ]


def test_one_bad_word_is_one_line_and_a_hint():
    with pytest.raises(UserError) as caught:
        resolve("smoke", ["actor.optim.lrr=1"])
    assert caught.value.message == "actor.optim.lrr=1 (command line): no such key; did you mean actor.optim.lr?"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("temperature=1", "did you mean rollout.temperature or rollout.val_kwargs.temperature"),
        ("actor.temperature=1", "did you mean rollout.temperature"),
        ("actro.optim.lr=1", "did you mean actor.optim.lr"),
        ("warmup.phases[0].optim.lrr=1", r"did you mean warmup.phases\[0\].optim.lr\?"),
        ("zzz=1", "did you mean"),
        ("warmup.phases[9].steps=1", "the list has 2 items"),
        ("no-equals", "not a key=value word"),
        ("~actor.pool=1", "null unsets a key"),
        ("=1", "not a key=value word"),
        ("actor={pol: x}", "actor.pol='x'.*did you mean actor.pool"),
        ("actor=null", "expected a section of keys"),
        ("trainer.seed=[1", "not a YAML value"),
        ("trainer.seed=1.5", "expected a whole number"),
        ("trainer.seed=true", "expected a whole number"),
        ("actor.optim.lr=.inf", "expected a finite number"),
        ("actor.optim.betas=[0.9]", "expected a list of 2 numbers"),
        ("trainer.val_before_train=1", "expected true or false"),
        ("model.override_config={1: a}", "is not text"),
        ("cluster.pools.main.gpu=1", "did you mean"),
        ("+rollout.n=2", "need no +"),
    ],
)
def test_words_that_are_refused(word, message):
    with pytest.raises(UserError, match=message) as caught:
        resolve("smoke", [word])
    assert "\n" not in caught.value.message


def value(word: str, *more: str):
    config = resolve("smoke", [word, *more]).config
    for step in word.split("=")[0].replace("[", ".").replace("]", "").split("."):
        config = config[int(step)] if isinstance(config, list) else getattr(config, step)
    return config


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("actor.optim.lr=1e-6", 1e-6),
        ("actor.optim.lr=1", 1.0),
        ("trainer.parity=off", "off"),
        ("trainer.experiment_name=007", "007"),
        ("trainer.experiment_name='007'", "007"),
        ("trainer.experiment_name=no", "no"),
        ("trainer.experiment_name=run #3", "run #3"),
        ("model.custom_chat_template={{ messages }}", "{{ messages }}"),
        ("trainer.logger=console", ["console"]),
        ("trainer.logger=['console','wandb']", ["console", "wandb"]),
        ("rollout.stop=[]", []),
        ("data.train_files=[a.parquet, b.parquet]", ["a.parquet", "b.parquet"]),
        ("model.override_config={a: {b: '0'}}", {"a": {"b": "0"}}),
        ("warmup.phases[1].steps=5", 5),
        ("warmup.phases.0.optim.lr=0.25", 0.25),
        ("actor.optim.betas=[0, 0.5]", (0.0, 0.5)),
        ("trainer.default_local_dir=${trainer.project_name}/x", "smoke/x"),
        ("data.max_prompt_length=${data.train_batch_size}", 16),
        (r"trainer.project_name=\${a}", "${a}"),
    ],
)
def test_words_mean_what_they_say(word, expected):
    found = value(word)
    assert found == expected and type(found) is type(expected)


def test_null_unsets_and_an_empty_optional_text_is_null():
    config = resolve("smoke", ["trainer.num_threads=null", "trainer.experiment_name=", "data.val_files=null"]).config
    assert (config.trainer.num_threads, config.trainer.experiment_name, config.data.val_files) == (None, None, None)


def test_free_mappings_merge_and_keep_text_as_text(tmp_path):
    file = write(tmp_path / "f.yaml", "extends: smoke\nreward: {reward_kwargs: {method: '0', deep: {a: 1}}}\n")
    resolved = resolve(None, ["reward.reward_kwargs.deep.b=2", "reward.reward_kwargs.off=off"], file=file)
    assert resolved.config.reward.reward_kwargs == {"method": "0", "deep": {"a": 1, "b": 2}, "off": "off"}
    assert resolved.origins["reward.reward_kwargs.deep.a"] == str(file)
    assert resolved.origins["reward.reward_kwargs.deep.b"] == "command line"


def test_numbers_in_a_file_stay_numbers_where_text_is_wanted(tmp_path):
    file = write(tmp_path / "f.yaml", "extends: smoke\ntrainer: {experiment_name: 7}\n")
    with pytest.raises(UserError, match=r"trainer.experiment_name=7 .*expected text or null \(quote it\)|quote it"):
        resolve(None, file=file)


def test_sections_whose_lines_are_all_comments(tmp_path):
    file = write(tmp_path / "f.yaml", "extends: smoke\nactor:\n  # pool: x\n  optim:\n    # lr: 1\ntrainer:\n")
    assert resolve(None, file=file).config == resolve("smoke").config


def test_an_anchor_behind_two_phases_can_be_changed_in_one():
    phases = resolve("smoke", ["warmup.phases[0].optim.weight_decay=0.5"]).config.warmup.phases
    assert [phase.optim.weight_decay for phase in phases] == [0.5, 0.0]


def test_environment_variables_and_their_absence(monkeypatch):
    monkeypatch.setenv("RLX_TEST_SEED", "5")
    assert resolve("smoke", ["trainer.seed=${oc.decode:${oc.env:RLX_TEST_SEED}}"]).config.trainer.seed == 5
    with pytest.raises(UserError) as caught:
        resolve("smoke", ["trainer.project_name=${oc.env:RLX_NOT_SET}", "trainer.save_freq=${nowhere}"])
    assert "RLX_NOT_SET" in caught.value.message and "nowhere" in caught.value.message
    assert "2 problems" in caught.value.message
    with pytest.raises(UserError, match=r"trainer.save_freq='builtin:show-your-work'"):
        resolve("smoke", ["trainer.save_freq=${data.train_files}"])
    with pytest.raises(UserError):
        resolve("smoke", ["trainer.project_name=${"])


def test_strict_turns_warnings_into_errors():
    words = ["algorithm.kl_ctrl.kl_coef=0.001"]
    assert len(resolve("smoke", words).warnings) == 1
    with pytest.raises(UserError, match=r"kl_coef.*no effect.*use_kl_in_reward=true"):
        resolve("smoke", words, strict=True)
