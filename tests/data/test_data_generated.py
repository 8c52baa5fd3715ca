"""Data sets that are made up: solvable, each with one solution, distinct, the same for a seed; and read from files."""

import json
from collections import Counter
from itertools import product
from random import Random

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.config.dataset_options import read, rows
from verl_core.config.errors import UserError
from verl_core.config.generated_data import CountdownOptions, KnightsAndKnavesOptions
from verl_core.data.prepare import countdown, job, knights_and_knaves
from verl_core.data.prepare.truth_tables import draw_claim, solutions, spoken
from verl_core.rewards.arithmetic import work_out
from verl_core.rewards.registry import default_scorer

SEEDS = st.integers(0, 2**32)


@settings(max_examples=60)
@given(SEEDS, st.integers(2, 6), st.integers(1, 200))
def test_countdown_is_solvable_by_the_numbers_it_shows(seed, most, largest):
    options = CountdownOptions(min_numbers=2, max_numbers=most, max_number=largest)
    puzzle = countdown.draw(Random(seed), options)
    if puzzle is None:
        return
    worked = work_out(puzzle.solution)
    assert worked.value == puzzle.target
    assert Counter(worked.numbers) == Counter(puzzle.numbers)
    assert 10 <= puzzle.target <= 99
    assert 2 <= len(puzzle.numbers) <= most
    assert all(1 <= n <= largest for n in puzzle.numbers)


def holds(claim, island):
    """What a claim says, worked out for one island: the definition, in other words than the truth tables."""
    kind, *parts = claim
    match kind:
        case "knight" | "knave":
            return island[parts[0]] == (kind == "knight")
        case "not":
            return not holds(parts[0], island)
        case "and":
            return all(holds(part, island) for part in parts)
        case "or":
            return any(holds(part, island) for part in parts)
        case "if":
            return not holds(parts[0], island) or holds(parts[1], island)


@settings(max_examples=60)
@given(SEEDS, st.integers(2, 5), st.integers(1, 4))
def test_solutions_are_the_islands_where_knights_and_only_they_say_what_holds(seed, n, depth):
    random = Random(seed)
    claims = [draw_claim(random, n, depth) for _ in range(n)]
    expected = {
        island
        for island in product((False, True), repeat=n)
        if all(holds(claim, island) == island[person] for person, claim in enumerate(claims))
    }
    assert set(solutions(claims)) == expected


@settings(max_examples=60)
@given(SEEDS)
def test_an_island_has_one_solution(seed):
    island = knights_and_knaves.draw(Random(seed), KnightsAndKnavesOptions(min_people=2, max_people=5))
    assert island is None or solutions(island.claims) == [island.knights]


def test_claims_are_said_so_that_nesting_has_one_reading():
    names = ("Ada", "Ben")
    claim = ("if", ("and", ("knight", 0), ("knave", 1)), ("not", ("or", ("knight", 1), ("knave", 0))))
    assert spoken(claim, names) == (
        "if both Ada is a knight and Ben is a knave, then it is not true that at least one of these is true: "
        "Ben is a knight, or Ada is a knave"
    )


@pytest.fixture
def made(tmp_path, capsys):
    """Prepares a data set and gives the rows by split, with the manifest."""

    def prepare(name, *words, out="out"):
        assert job.main([name, "--out", str(tmp_path / out), "--json", *words]) == 0
        manifest = json.loads(capsys.readouterr().out)
        return manifest, {
            split: pq.read_table(tmp_path / out / file["file"]).to_pylist() for split, file in manifest["files"].items()
        }

    return prepare


@pytest.mark.parametrize("name", ["countdown", "knights-and-knaves"])
def test_made_by_seed_distinct_and_each_gold_scores_one(made, name):
    words = ("--count", "300", "--test-count", "40", "--seed", "7")
    manifest, splits = made(name, *words)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 300, "test": 40}
    every = splits["train"] + splits["test"]
    golds = [json.dumps(row["reward_model"]["ground_truth"]) for row in every]
    score = default_scorer(every[0]["data_source"])
    for i, row in enumerate(every):
        gold, extra = row["reward_model"]["ground_truth"], row["extra_info"]
        assert score(row["data_source"], extra["answer"], gold, extra)["score"] == 1
        other = next(k for k in range(i + 1, i + len(every)) if golds[k % len(every)] != golds[i]) % len(every)
        wrong = every[other]["extra_info"]["answer"]
        assert score(row["data_source"], wrong, gold, extra)["score"] == 0
    again, _ = made(name, *words, out="again")
    assert again["files"] == manifest["files"]
    assert made(name, *words[:-1], "8", out="other")[1]["train"] != splits["train"]
    more = made(name, "--count", "500", *words[2:], out="more")[1]
    assert more["test"] == splits["test"] and more["train"][:300] == splits["train"]


def test_no_countdown_problem_of_the_test_split_is_one_of_training(made):
    """Of few possible problems, so that the same ones are drawn again and again."""
    words = ("--count", "60", "--test-count", "20", "--max-number", "4", "--min-target", "1", "--max-numbers", "3")
    _, splits = made("countdown", *words)
    golds = [row["reward_model"]["ground_truth"] for split in splits.values() for row in split]
    assert len({(tuple(sorted(gold["numbers"])), gold["target"]) for gold in golds}) == 80
    with pytest.raises(UserError, match=r"too few different problems: \d+ of 9999 for train"):
        made("countdown", "--count", "9999", *words[2:], out="never")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", "0"], "--count is 0, below 1"),
        (["--min-numbers", "5"], "--max-numbers is 4, below 5"),
        (["--max-numbers", "99"], "--max-numbers is 99, above 10"),
        (["--max-target", "9"], "--max-target is 9, below 10"),
        (["--people", "3"], "no option --people"),
        (["--count", "many"], "--count 'many': expected a whole number"),
    ],
)
def test_options_are_checked(words, said):
    with pytest.raises(UserError) as error:
        read("countdown", words)
    assert said in str(error.value)


def test_rows_of_a_plan_are_those_asked_for_and_tasks_are_known_by_name():
    assert rows("countdown", read("countdown", ["--count", "5"])) == {"train": 5, "test": 500}
    assert rows("reasoning-gym:sudoku", read("reasoning-gym:sudoku", [])) == {"train": 2000, "test": 200}
    assert rows("gsm8k", None) == {"train": 7473, "test": 1319}
    refused = {
        "reasoning-gym": "is no data set",
        "reasoning-gym:sudku": "did you mean sudoku",
        "gsm8k:x": "no data set",
    }
    for name, said in refused.items():
        with pytest.raises(UserError, match=said):
            read(name, [])
    with pytest.raises(UserError, match="--set 'x' is not KEY=VALUE"):
        read("reasoning-gym:sudoku", ["--set", "x"])


COUNTDOWN = {"question": "Make 12 of 12, 2, 2.", "answer": "12*2/2", "metadata": {"numbers": [12, 2, 2], "target": 12}}
ISLAND = {
    "question": "Zoe says: Lily is a fool. Lily says: Zoe is a fool and I am a sage.",
    "answer": "Zoe is a fool, and Lily is a sage.",
    "metadata": {
        "names": ["Zoe", "Lily"],
        "solution": [False, True],
        "knight_knave_terms": {"knight": "sage", "knave": "fool"},
    },
}


@pytest.mark.parametrize(("name", "record"), [("countdown", COUNTDOWN), ("knights-and-knaves", ISLAND)])
def test_files_of_others_are_read(made, tmp_path, name, record):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    _, splits = made(name, "--source", str(tmp_path))
    [row] = splits["test"]
    gold, extra = row["reward_model"]["ground_truth"], row["extra_info"]
    assert default_scorer(row["data_source"])(row["data_source"], extra["answer"], gold, extra)["score"] == 1
    with pytest.raises(UserError, match="--seed is for problems that are made"):
        made(name, "--source", str(tmp_path), "--seed", "3")


BROKEN = {
    "countdown": [
        ({"answer": "12*2"}, "answer does not solve it"),
        ({"metadata": {"numbers": [12, 2, 2]}}, "metadata.target is None, not a whole number"),
        ({"metadata": {"numbers": "12", "target": 12}}, "metadata.numbers is '12'"),
        ({"metadata": None}, "metadata is null"),
    ],
    "knights-and-knaves": [
        ({"answer": "Zoe is a sage, and Lily is a sage."}, "answer is not the solution"),
        ({"metadata": {"names": ["Zoe"], "solution": [1]}}, "metadata.solution is [1]"),
        ({"metadata": {"names": None}}, "metadata.names is None"),
        ({"question": None}, "question is null"),
    ],
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rows_are_named(made, tmp_path, name):
    good = {"countdown": COUNTDOWN, "knights-and-knaves": ISLAND}[name]
    lines = "".join(json.dumps(good | change) + "\n" for change, _ in BROKEN[name])
    (tmp_path / "train.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "test.jsonl").write_text(json.dumps(good) + "\n", encoding="utf-8")
    with pytest.raises(UserError) as error:
        made(name, "--source", str(tmp_path))
    for number, (_, said) in enumerate(BROKEN[name], start=1):
        assert f"train.jsonl row {number}: {said}" in str(error.value)
