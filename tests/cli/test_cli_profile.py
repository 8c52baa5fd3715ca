"""`rlx profile`: ls, show, cp, diff."""

import json

import pytest
from typer.testing import CliRunner

from rlx.main import app
from tests.conftest import ROOT
from verl_core.config import write, yaml_text
from verl_core.config.compose import profile_names, resolve
from verl_core.config.errors import UserError
from verl_core.config.schema import RlxConfig
from verl_core.config.typed import leaves, plain


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def profile(*words: str):
    return run("profile", *words)


def run(*words: str):
    """The command in this process; errors that a user causes are raised."""
    done = CliRunner().invoke(app, [*words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_the_list_fits_and_names_everything(rlx):
    done = rlx("profile", "ls")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[0].split() == ["PROFILE", "ALGORITHM", "ENGINE", "MODEL", "HARDWARE"]
    first_words = [line.split()[0].rstrip("*") for line in lines[2:] if not line.startswith(" ")]
    assert first_words == profile_names()
    text = " ".join(" ".join(lines).split())
    for name in profile_names():
        c = resolve(name).config
        for value in (c.purpose, c.hardware, c.memory, c.time, c.model.path):
            assert value in text, name
    assert "256-gpu-grpo*" in text and "smoke*" not in text


def test_everything_about_each_as_lines_and_as_json(here):
    rows = {row["profile"]: row for row in json.loads(profile("ls", "--json").stdout)}
    assert list(rows) == profile_names()
    smoke = rows["smoke"]
    assert (smoke["algorithm"], smoke["engine"], smoke["later"]) == ("grpo", "hf", [])
    assert rows["sft-gsm8k"]["engine"] == "" and rows["sft-gsm8k"]["later"] == []
    assert "megatron" in rows["256-gpu-grpo"]["later"][0]
    assert all(row[name] for row in rows.values() for name in ("model", "hardware", "memory", "time", "purpose"))
    blocks = profile("ls", "--long").stdout.split("\n\n")
    assert [block.split()[1] for block in blocks if block.strip()] == profile_names()
    assert "later" in blocks[profile_names().index("256-gpu-grpo")]


def test_shown_yaml_round_trips_with_its_nulls(here):
    shown = profile("show", "smoke", "data.seed=null").stdout
    (here / "x.yaml").write_text(shown)
    assert "seed: null" in shown and write.load(here / "x.yaml") == resolve("smoke").config
    assert json.loads(profile("show", "smoke", "--json").stdout) == plain(resolve("smoke").config)


@pytest.mark.parametrize("name", ["smoke-ppo", "256-gpu-grpo"])
def test_only_what_differs_from_the_defaults(here, name):
    shown = profile("show", name, "--changed", "trainer.num_threads=3").stdout
    config = resolve(name, ["trainer.num_threads=3"]).config
    (here / "x.yaml").write_text(shown)
    assert write.load(here / "x.yaml") == config
    defaults = dict(leaves(plain(RlxConfig())))
    tree = yaml_text.read(shown)
    assert "null" not in shown and tree["trainer"]["num_threads"] == 3
    assert all(defaults.get(key, "no such default") != value for key, value in leaves(tree))
    assert json.loads(profile("show", name, "--changed", "trainer.num_threads=3", "--json").stdout) == tree


def test_a_copy_keeps_the_comments_and_says_where_it_came_from(rlx, tmp_path):
    done = rlx("profile", "cp", "smoke-ppo", "mine.yaml")
    assert done.returncode == 0 and "rlx train mine.yaml" in done.stderr and done.stdout == ""
    text = (tmp_path / "mine.yaml").read_text()
    original = (ROOT / "profiles" / "smoke-ppo.yaml").read_text()
    assert text.endswith(original) and "smoke-ppo" in text.splitlines()[0]
    assert rlx("config", "check", "mine.yaml").returncode == 0
    assert resolve(str(tmp_path / "mine.yaml")).config == resolve("smoke-ppo").config


def test_a_copy_says_what_does_not_run_yet(rlx, tmp_path):
    assert "strategy=megatron comes with a later release" in rlx("profile", "cp", "256-gpu-grpo", "mine.yaml").stderr


def test_nothing_is_overwritten_unless_asked(rlx, tmp_path):
    (tmp_path / "mine.yaml").write_text("mine")
    done = rlx("profile", "cp", "smoke", "mine.yaml")
    assert done.returncode == 1 and "--force" in done.stderr and (tmp_path / "mine.yaml").read_text() == "mine"
    assert rlx("profile", "cp", "smoke", "mine.yaml", "--force").returncode == 0
    assert "show-your-work" in (tmp_path / "mine.yaml").read_text()


def test_a_flat_copy_extends_nothing(here):
    profile("cp", "smoke-ppo", "flat", "--flat")
    tree = yaml_text.read((here / "flat").read_text())
    assert "extends" not in tree and tree["model"]["path"] == "builtin:show-your-work"
    assert resolve("./flat").config == resolve("smoke-ppo").config


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["smok", "x.yaml"], "did you mean smoke"),
        (["nothing-like-it", "x.yaml"], "error: no profile 'nothing-like-it'\nhint: `rlx profile ls`"),
        (["./x.yaml", "y.yaml"], "no profile './x.yaml'"),
        (["smoke", "no/such/folder/x.yaml"], "No such file or directory"),
        (["smoke", "."], "exists"),
        (["smoke", ".", "--force"], "Is a directory"),
    ],
)
def test_copies_that_cannot_be_made(rlx, tmp_path, words, said):
    done = rlx("profile", "cp", *words)
    assert done.returncode == 1 and said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_diff_is_that_of_config(here):
    found = json.loads(profile("diff", "gsm8k-ppo", "gsm8k-grpo", "--json").stdout)
    assert found["algorithm.name"]["a"] == {"value": "ppo", "origin": "profile gsm8k-ppo"}
    assert "data.train_batch_size" not in found


@pytest.mark.parametrize(
    ("words", "argument"),
    [
        (["config", "show", ""], "PROFILE"),
        (["config", "check", "smoke", ""], "PROFILE"),
        (["config", "diff", "smoke", ""], "PROFILE"),
        (["profile", "show", "", "trainer.seed=1"], "PROFILE"),
        (["train", "", "--dry-run"], "PROFILE"),
        (["env", "which", ""], "PROFILE"),
        (["eval", "", "smoke"], "MODEL_OR_RUN"),
        (["init", "new", "--profile", ""], "--profile"),
        (["config", "import", "x.sh", "--extends", ""], "--extends"),
    ],
)
def test_an_unset_variable_of_a_script_starts_nothing(here, words, argument):
    (here / "rlx.yaml").write_text("extends: smoke\n")
    with pytest.raises(UserError, match=f"^{argument} is empty$"):
        run(*words)
    (here / "rlx.yaml").write_text("extends: ''\n")
    with pytest.raises(UserError, match="extends: '' is not the name of a profile"):
        run("config", "show")
