"""`rlx algo`: every method of the catalogue by name, with what it needs and which keys it has."""

import json

import pytest

from rlx.commands import algo
from verl_core.config.catalogue import KINDS, entry, names

SHOWN = algo.KINDS
BUILT = [(kind, name) for kind in SHOWN for name in names(kind, built=True)]
LABELS = (*SHOWN, "about", "formula", "needs", "presets", "key", "chosen by")


def test_ls_has_every_name_and_marks_what_comes_later(rlx, capsys):
    listed = json.loads(rlx("algo", "ls", "--json").stdout)
    found = {(row["kind"], row["name"]): row for row in listed}
    for kind in SHOWN:
        for name in names(kind):
            assert found[kind, name]["built"] == entry(kind, name).built, name
    algo.ls(as_json=False)
    words = capsys.readouterr().out.split()
    starred = {name for kind in SHOWN for name in names(kind) if f"{name}*" in words}
    assert starred == {name for kind in SHOWN for name in names(kind) if not entry(kind, name).built}


def test_show_says_what_a_name_means_in_every_kind(rlx):
    text = rlx("algo", "show", "gspo").stdout
    assert "2507.18071" in text and "formula" in text and "actor.clip_ratio_high" in text
    needs = {row["kind"]: row["needs"] for row in json.loads(rlx("algo", "show", "ppo", "--json").stdout)}
    assert needs["algorithm"] == ["critic"]


@pytest.mark.parametrize(("kind", "name"), BUILT)
def test_show_prints_formula_needs_and_keys_of_every_name(kind, name, capsys):
    algo.show(name, as_json=False)
    blocks = [block.splitlines() for block in capsys.readouterr().out.strip().split("\n\n")]
    block = next(lines for lines in blocks if lines[0].split()[:2] == [kind, name])
    told: dict[str, list[str]] = {}
    for line in block:
        label = next(label for label in LABELS if line.startswith(label))
        told.setdefault(label, []).append(line.removeprefix(label).strip())
    assert all(all(values) for values in told.values())
    assert {"about", "formula", "needs", "chosen by"} <= told.keys()
    assert told["needs"] == [", ".join(entry(kind, name).needs) or "nothing"]
    assert [f"{key}={name}" for key, of in KINDS.items() if of == kind] == told["chosen by"][0].split(" or ")
    shown = [line.partition("=")[0] for line in told.get("presets", []) + told.get("key", [])]
    presets = entry(kind, name).options or {}
    assert sorted(shown) == sorted({*entry(kind, name).keys, *presets})


def test_the_formula_of_an_algorithm_is_that_of_its_parts(capsys):
    algo.show("dr_grpo", as_json=True)
    row = json.loads(capsys.readouterr().out)[0]
    parts = entry("advantage", "grpo").formula, entry("policy_loss", "vanilla").formula
    assert row["formula"] == "A = {}; loss = {}".format(*parts) and row["chosen_by"] == ["algorithm.name"]


def test_an_unknown_name_gets_the_nearest(rlx):
    done = rlx("algo", "show", "gsop")
    assert done.returncode == 1 and "gspo" in done.stderr and len(done.stderr.splitlines()) <= 2


def test_kinds_are_those_of_the_catalogue():
    assert set(SHOWN) <= set(KINDS.values())
