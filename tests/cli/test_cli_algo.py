"""`rlx algo`: every method of the catalogue by name, with what it needs and which keys it has."""

import json

import pytest

from verl_core.config.catalogue import KINDS, entry, names

SHOWN = ("algorithm", "advantage", "policy_loss")


def test_ls_has_every_name_and_marks_what_comes_later(rlx):
    listed = json.loads(rlx("algo", "ls", "--json").stdout)
    found = {(row["kind"], row["name"]): row for row in listed}
    for kind in SHOWN:
        for name in names(kind):
            assert found[kind, name]["built"] == entry(kind, name).built, name
    text = rlx("algo", "ls").stdout
    assert "vapo*" in text and "grpo*" not in text


def test_show_says_what_a_name_means_in_every_kind(rlx):
    text = rlx("algo", "show", "gspo").stdout
    assert "2507.18071" in text and "formula" in text and "actor.clip_ratio_high" in text
    needs = {row["kind"]: row["needs"] for row in json.loads(rlx("algo", "show", "ppo", "--json").stdout)}
    assert needs["algorithm"] == ["critic"]


@pytest.mark.parametrize("name", names("policy_loss"))
def test_every_policy_loss_has_a_formula(name):
    assert entry("policy_loss", name).formula


def test_an_unknown_name_gets_the_nearest(rlx):
    done = rlx("algo", "show", "gsop")
    assert done.returncode == 1 and "gspo" in done.stderr and len(done.stderr.splitlines()) <= 2


def test_kinds_are_those_of_the_catalogue():
    assert set(SHOWN) <= set(KINDS.values())
