"""What the job of `rlx data` finds in files, and prints."""

import json

import pytest
from transformers import AutoTokenizer

from verl_core.config import write
from verl_core.config.compose import of_words
from verl_core.config.errors import UserError
from verl_core.data.inspection.figures import summary
from verl_core.data.inspection.job import main


def row(text, gold="7", **changes):
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": text}],
        "reward_model": {"ground_truth": gold},
        **changes,
    }


@pytest.fixture
def run(tmp_path, tokenizer, capsys):
    """Runs the job with --json, with or without a tokenizer; gives (exit code, what it printed)."""
    tokenizer.save_pretrained(tmp_path / "model")

    def run(command, *words, keys=(), characters=False, plain=False):
        config = tmp_path / "config.yaml"
        model = [f"model.path={tmp_path / 'model'}", *keys]
        config.write_text(write.dump(write.of_run(of_words(model))))
        words = [*words, *(["--no-tokenizer"] if characters else []), *([] if plain else ["--json"])]
        code = main([command, *map(str, words), "--config", str(config), "--by-columns"])
        printed = capsys.readouterr().out
        return code, printed if plain else json.loads(printed)

    return run


def write_rows(file, rows):
    file.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return file


def test_a_row_is_shown_as_it_will_be_sent(tmp_path, run, tokenizer):
    file = write_rows(tmp_path / "a.jsonl", [row(f"How many is {i}?", str(i)) for i in range(5)])
    code, (shown,) = run("show", file, "--row", 3)
    text = "<|im_start|>user\nHow many is 2?<|im_end|>\n<|im_start|>assistant\n"
    assert code == 0 and shown == {
        "file": str(file),
        "row": 3,
        "data_source": "openai/gsm8k",
        "prompt": text,
        "tokens": len(tokenizer(text, add_special_tokens=False)["input_ids"]),
        "ground_truth": "2",
        "scorer": "openai/gsm8k",
        "extra_info": {},
    }
    assert [r["row"] for r in run("show", file, "-n", 2)[1]] == [1, 2]
    assert text in run("show", file, plain=True)[1]
    with pytest.raises(UserError, match="--row 6: there are 5 rows"):
        run("show", file, "--row", 6)


def test_without_a_tokenizer_messages_are_shown(tmp_path, run):
    file = write_rows(tmp_path / "a.jsonl", [row("Hi")])
    (shown,) = run("show", file, characters=True)[1]
    assert shown["messages"] == [{"role": "user", "content": "Hi"}] and "tokens" not in shown


def test_an_overlong_row_says_what_a_run_makes_of_it(tmp_path, run):
    file = write_rows(tmp_path / "a.jsonl", [row("many words " * 9)])
    for keys, fate in [
        ([], "refused"),
        (["data.filter_overlong_prompts=true"], "dropped"),
        (["data.truncation=left"], "cut"),
    ]:
        (shown,) = run("show", file, keys=["data.max_prompt_length=20", *keys])[1]
        assert shown["overlong"] == f"{fate}, as it is over data.max_prompt_length=20"


def test_examples_show_their_answers_and_what_is_learned_of_them(tmp_path, run):
    messages = [{"role": role, "content": text} for role, text in [("user", "A?"), ("assistant", "B.")]]
    pairs = write_rows(tmp_path / "pairs.jsonl", [{"prompt": "A?", "chosen": "B.", "rejected": "C."}])
    sft = write_rows(tmp_path / "sft.jsonl", [{"messages": messages}])
    (shown,) = run("show", pairs)[1]
    assert shown["answers"] == shown["learned"] == ["B.<|im_end|>", "C.<|im_end|>"]
    assert run("show", sft)[1][0]["learned"] == ["B.<|im_end|>"]
    assert run("stats", pairs)[1]["answer_length"]["max"] == shown["answer_tokens"]


def test_figures_of_a_file_and_of_two(tmp_path, run, tokenizer):
    rows = [row("Short?"), row("short? "), row("A longer question, is it not?"), "{", row("x", data_source="s")]
    file = write_rows(tmp_path / "a.jsonl", rows)
    other = write_rows(tmp_path / "b.jsonl", [row("A  LONGER question, is it not?"), row("Another?")])
    _, found = run("stats", file, "--against", other, "--max-prompt-length", 20)
    assert (found["rows"], found["broken"], found["duplicates"]) == (4, 1, 1)
    assert found["data_sources"] == {"openai/gsm8k": 3, "s": 1}
    assert (found["unit"], found["overlong"], found["overlong_share"]) == ("tokens", 1, 0.25)
    assert found["against"] == {"rows": 2, "shared": 1, "shared_share": 0.25}
    assert sum(count for _, _, count in found["prompt_length"]["histogram"]) == 4
    _, counted = run("stats", file, characters=True)
    assert counted["unit"] == "characters" and counted["prompt_length"]["max"] == 29 and "overlong" not in counted
    _, printed = run("stats", file, characters=True, plain=True)
    assert "prompt length, characters: min 1, median 6, p95 29, max 29" in printed


@pytest.mark.parametrize("lengths", [[5], [1, 2, 3], list(range(100)), [3] * 7 + [900]])
def test_a_summary_counts_every_length_once(lengths):
    s = summary(lengths)
    assert (s["min"], s["max"]) == (min(lengths), max(lengths))
    assert sum(n <= s["p95"] for n in lengths) >= 0.95 * len(lengths) > sum(n < s["p95"] for n in lengths)
    assert len(s["histogram"]) <= 10
    for low, high, count in s["histogram"]:
        assert count == sum(low <= length <= high for length in lengths)


def test_check_finds_all_of_it_and_ends_with_1(tmp_path, run):
    train = write_rows(
        tmp_path / "train.jsonl",
        [
            row("One?"),
            row("Two?", gold=None),
            "{broken",
            row("ONE?"),
            row("No number", gold="none"),
            row("Who scores me?", data_source="nobody"),
            row("very long " * 12),
        ],
    )
    val = write_rows(tmp_path / "test.jsonl", [row("New?"), row(" one? ")])
    code, found = run("check", train, "--val", val, keys=["data.max_prompt_length=40"])
    assert code == 1 and found["rows"] == {"train": 5, "val": 2}
    said = {(f["file"].rsplit("/", 1)[1], f["row"], f["kind"]) for f in found["faults"]}
    assert said == {
        ("train.jsonl", 2, "broken"),
        ("train.jsonl", 3, "broken"),
        ("train.jsonl", 4, "duplicate"),
        ("train.jsonl", 5, "gold"),
        ("train.jsonl", 6, "scorer"),
        ("train.jsonl", 7, "length"),
        ("test.jsonl", 2, "overlap"),
    }
    assert found["counts"]["broken"] == 2
    plain = run("check", train, "--val", val, plain=True, characters=True)[1]
    assert f"{train} row 3: broken: not JSON" in plain
    assert plain.endswith("5 train and 2 val rows: 2 broken, 1 scorer, 1 gold, 1 duplicate, 1 overlap\n")


def test_check_says_what_is_broken_in_a_source_of_which_nothing_is_left(tmp_path, run):
    good, bad = write_rows(tmp_path / "good.jsonl", [row("One?")]), write_rows(tmp_path / "bad.jsonl", ["{broken"])
    files = [f"data.mixture.{name}.files={file}" for name, file in {"good": good, "bad": bad}.items()]
    code, found = run("check", keys=[*files, "data.val_files=null"])
    assert code == 1 and [(f["file"], f["kind"]) for f in found["faults"]] == [(str(bad), "broken")]


def test_check_of_validation_files_alone(tmp_path, run):
    write_rows(tmp_path / "test.jsonl", [row("One?"), row("Two?", data_source="nobody")])
    code, found = run("check", "--val", tmp_path, characters=True)
    assert (code, found["rows"], found["counts"]) == (1, {"val": 2}, {"scorer": 1})
    assert "reward.custom_reward_function.path" in found["faults"][0]["said"]


def test_check_says_every_row_that_the_template_refuses(tmp_path, run, tokenizer):
    strict = AutoTokenizer.from_pretrained(tmp_path / "model")
    strict.chat_template = "{% if messages[0].content == 'No' %}{{ raise_exception('no No') }}{% endif %}x"
    strict.save_pretrained(tmp_path / "model")
    file = write_rows(tmp_path / "a.jsonl", [row("No"), row("Yes"), row("No", extra_info={"a": 1})])
    _, found = run("check", file)
    refused = [(f["row"], f["said"]) for f in found["faults"] if f["kind"] == "template"]
    assert [number for number, _ in refused] == [1, 3] and "no No" in refused[0][1]


def test_check_of_good_files_ends_with_0_and_builtins_are_files_too(tmp_path, run):
    train = write_rows(tmp_path / "train.jsonl", [row("One?"), row("Two?")])
    assert run("check", train)[:2] == (0, {"rows": {"train": 2}, "counts": {}, "faults": []})
    assert run("stats", "builtin:show-your-work", characters=True)[1]["rows"] == 1699


def test_the_parts_of_the_reward_say_what_scores_a_row(tmp_path, run):
    """A model needs neither rule nor ground truth; a rule that is named scores rows of any data source."""
    rows = [row("Who scores me?", data_source="nobody"), row("And me?", data_source="nobody", gold=[])]
    file = write_rows(tmp_path / "a.jsonl", rows)
    judged, asked = ["reward.scorers={judge: 1}"], ["reward.scorers={gsm8k: 1, format: 0.1}"]
    assert run("check", file, keys=judged, characters=True)[1]["faults"] == []
    (fault,) = run("check", file, keys=asked, characters=True)[1]["faults"]
    assert (fault["row"], fault["kind"]) == (2, "gold") and fault["said"].startswith("gsm8k cannot score it")
    for keys, named in [(judged, "judge"), (asked, "gsm8k + format"), ([], None)]:
        assert [shown["scorer"] for shown in run("show", file, keys=keys, characters=True)[1]] == [named] * 2


def test_a_fault_of_a_users_rule_is_said_once(tmp_path, run):
    rule = tmp_path / "rule.py"
    rule.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return ''[0]\n")
    file = write_rows(tmp_path / "a.jsonl", [row("One?"), row("Two?")])
    _, found = run("check", file, keys=[f"reward.custom_reward_function.path={rule}"], characters=True)
    (fault,) = found["faults"]
    assert fault["kind"] == "scorer" and "fails on an empty answer" in fault["said"] and "(2 rows)" in fault["said"]
