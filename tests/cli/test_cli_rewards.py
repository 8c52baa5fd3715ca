"""`rlx rewards`: every scorer of the catalogue by name, with its keywords and data sources."""

import inspect
import json

from rlx.commands import rewards
from verl_core.config.catalogue import implementation, names
from verl_core.config.errors import UserError


def test_ls_has_every_name_once(rlx, capsys):
    listed = json.loads(rlx("rewards", "ls", "--json").stdout)
    said = [row["name"] for row in listed] + [source for row in listed for source in row["data_sources"]]
    assert sorted(said) == sorted([*names("scorer"), "reward_model", "judge"])
    assert all(row["doc"] for row in listed)
    rewards.ls(as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    assert all(row["name"] in text and row["doc"] in text for row in listed)


def test_keywords_are_those_of_the_code():
    """Beside what every rule is called with; `sandbox` is handed in from its own section."""
    common = {"data_source", "solution_str", "ground_truth", "extra_info", "sandbox"}
    for rule in rewards._rules():
        taken = inspect.signature(implementation("scorer", rule.entry.name)).parameters
        assert set(rewards.keywords_of(rule.entry.name)) == set(taken) - common, rule.entry.name


def test_show_finds_the_rule_of_a_data_source(rlx):
    text = rlx("rewards", "show", "openai/gsm8k").stdout
    assert "gsm8k" in text and "method" in text and "reward.scorers={gsm8k: 1}" in text
    assert json.loads(rlx("rewards", "show", "aime2024", "--json").stdout)["name"] == "dapo_math"
    assert "reward.scorers={judge: 1}" in rlx("rewards", "show", "judge").stdout
    failed = rlx("rewards", "show", "gsm9k")
    assert failed.returncode == UserError.exit_code and "did you mean gsm8k" in failed.stderr
