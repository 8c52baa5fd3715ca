"""Rows with answers: the forms that data sets have, what is broken in them, lengths, and the embedded task's."""

import json

import pytest

from verl_core.config.errors import UserError
from verl_core.config.schema import DataConfig
from verl_core.data.examples import ExampleDataset, form_of

USER, ANSWER = {"role": "user", "content": "7+5?"}, {"role": "assistant", "content": "12"}
WRONG = {"role": "assistant", "content": "13"}
SYSTEM, MORE = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "And 3?"}


@pytest.fixture
def make(tmp_path, tokenizer):
    def make(rows, form="demonstrations", split="train", **cfg):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
        return ExampleDataset(str(file), DataConfig(**cfg), tokenizer, split, 0, form)

    return make


def texts(data, tokenizer, position: int = 0) -> list[tuple[int, str, str]]:
    """(sample, prompt, learned text) of a row's answers."""
    group = data.group(data[position])
    return [
        (t.sample, tokenizer.decode([i for i, m in zip(t.ids, t.mask, strict=True) if not m]), learned(t, tokenizer))
        for t in group
    ]


def learned(t, tokenizer) -> str:
    return tokenizer.decode(t.response_ids)


PROMPT = "<|im_start|>user\n7+5?<|im_end|>\n<|im_start|>assistant\n"
RIGHT, FALSE = (0, PROMPT, "12<|im_end|>"), (1, PROMPT, "13<|im_end|>")


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        ({"messages": [USER, ANSWER]}, {}),
        ({"messages": [USER, ANSWER, MORE]}, {}),  # what comes after the last answer teaches nothing
        ({"dialogue": [USER, ANSWER]}, {"messages_key": "dialogue"}),
        ({"prompt": [USER], "extra_info": {"answer": "12"}, "data_source": "gsm8k"}, {}),  # veRL's gsm8k
        ({"prompt": "7+5?", "response": "12"}, {"response_key": "response"}),
        ({"question": "7+5?", "answer": {"long": "12"}}, {"prompt_key": "question", "response_key": "answer.long"}),
    ],
)
def test_a_demonstration_in_each_form(make, tokenizer, row, keys):
    data = make([row], **keys)
    assert texts(data, tokenizer) == [RIGHT]
    assert data[0].data_source == row.get("data_source", "rows") and tokenizer.decode(data[0].ids) == PROMPT


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "7+5?", "chosen": "12", "rejected": "13"},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [WRONG]},
        {"prompt": " 7+5?\n", "chosen": [USER, ANSWER], "rejected": [USER, WRONG]},  # ultrafeedback_binarized
        {"chosen": [USER, ANSWER], "rejected": [USER, WRONG]},
        {"chosen": "\n\nHuman: 7+5?\n\nAssistant: 12", "rejected": "\n\nHuman: 7+5?\n\nAssistant: 13"},  # hh-rlhf
    ],
)
def test_a_pair_in_each_form(make, tokenizer, row):
    data = make([row], "pairs")
    got = texts(data, tokenizer)
    assert [(sample, text) for sample, _, text in got] == [(0, "12<|im_end|>"), (1, "13<|im_end|>")]
    assert {prompt.replace(" 7+5?\n", "7+5?") for _, prompt, _ in got} == {PROMPT}
    assert [t.group for t in data.group(data[0])] == ["0-0", "0-0"] and data[0].data_source == "rows"


def test_a_call_of_a_tool_needs_no_content(make):
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}
    data = make([{"messages": [USER, call, {"role": "tool", "content": "12"}, ANSWER]}])
    (answer,) = data._example(0).answers
    assert answer.turns[0] == call | {"content": ""}
    with pytest.raises(UserError, match=r"messages\[1\].content is None, not a string"):
        make([{"messages": [USER, call | {"tool_calls": []}]}])


def test_a_pair_may_differ_from_an_earlier_turn_on(make, tokenizer):
    chosen, rejected = [SYSTEM, USER, ANSWER, MORE, ANSWER], [SYSTEM, USER, WRONG, MORE, ANSWER]
    one, other = make([{"chosen": chosen, "rejected": rejected}], "pairs").group(
        make([{"chosen": chosen, "rejected": rejected}], "pairs")[0]
    )
    assert (learned(one, tokenizer), learned(other, tokenizer)) == (
        "12<|im_end|>12<|im_end|>",
        "13<|im_end|>12<|im_end|>",
    )
    assert [s.kind for s in one.segments] == ["prompt", "response", "tool", "response"]


@pytest.mark.parametrize("written", [lambda tools: tools, json.dumps])
def test_tools_are_shown_to_the_template(make, tokenizer, monkeypatch, written):
    shown = "{% if tools %}tools: {{ tools[0]['name'] }}{{ tools[0].keys() | length }}\n{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", shown + tokenizer.chat_template)
    row = {"messages": [USER, ANSWER], "tools": written([{"name": "add", "about": None}])}
    assert texts(make([row]), tokenizer) == [(0, f"tools: add1\n{PROMPT}", "12<|im_end|>")]
    assert make([row]).content_hash() != make([{"messages": [USER, ANSWER]}]).content_hash()


def test_a_margin_is_kept_and_is_none_where_it_is_absent(make):
    row = {"prompt": "7+5?", "chosen": "12", "rejected": "13"}
    data = make([row | {"margin": 2}, row], "pairs")
    assert [[t.meta["margin"] for t in data.group(r)] for r in data.take([0, 1])] == [[2.0, 2.0], [0.0, 0.0]]


def test_labelled_answers_stand_where_a_pair_has_them(make, tokenizer):
    rows = [
        {"prompt": "7+5?", "completion": "12", "label": True},
        {"prompt": [USER], "completion": [WRONG], "label": 0},
        {"prompt": "7+5?", "chosen": "12", "rejected": "13"},
    ]
    data = make(rows, "labels")
    assert [texts(data, tokenizer, i) for i in range(3)] == [[RIGHT], [FALSE], [RIGHT, FALSE]]


@pytest.mark.parametrize(
    ("form", "row", "said"),
    [
        ("demonstrations", {}, r"messages \(or prompt and extra_info.answer\) is missing; keys present: none"),
        ("demonstrations", {"messages": None}, r"messages \(or prompt and extra_info.answer\) is null"),
        ("demonstrations", {"messages": [USER]}, "messages has no message of the role assistant, only of user"),
        (
            "demonstrations",
            {"messages": [USER, ANSWER | {"role": "gpt"}]},
            "messages has no message of the role assistant, only of user, gpt",
        ),
        ("demonstrations", {"messages": [ANSWER, USER]}, r"messages\[0\].role is assistant"),
        ("demonstrations", {"messages": [ANSWER, USER, ANSWER]}, r"messages\[0\].role is assistant"),
        ("demonstrations", {"messages": "hello"}, "messages is 'hello', not a list of messages"),
        ("demonstrations", {"messages": [USER, {"role": "assistant"}]}, r"messages\[1\].content is None"),
        ("demonstrations", {"prompt": "7+5?"}, "extra_info.answer is missing"),
        ("demonstrations", {"prompt": "7+5?", "extra_info": {"answer": None}}, "extra_info.answer is null"),
        ("demonstrations", {"prompt": "7+5?", "extra_info": {"answer": 12}}, "extra_info.answer is 12, not a string"),
        ("demonstrations", {"messages": [USER, ANSWER], "data_source": 3}, "data_source is 3, not a string"),
        ("demonstrations", {"messages": [USER, ANSWER], "tools": "{"}, "tools is not JSON"),
        (
            "demonstrations",
            {"messages": [USER, ANSWER], "tools": {"a": 1}},
            "tools is .*not a list of function schemas",
        ),
        ("demonstrations", "{not json", "not JSON"),
        ("pairs", {"prompt": "7+5?", "chosen": "12"}, "rejected is missing"),
        ("pairs", {"prompt": "7+5?", "chosen": None, "rejected": "13"}, "chosen is null"),
        ("pairs", {"chosen": "12", "rejected": "13"}, "chosen and rejected answer no common prompt"),
        ("pairs", {"chosen": [USER, ANSWER], "rejected": [MORE, WRONG]}, "chosen and rejected answer no common prompt"),
        ("pairs", {"prompt": "?", "chosen": [USER, ANSWER], "rejected": "13"}, "chosen does not answer the prompt"),
        ("pairs", {"prompt": "7+5?", "chosen": "12", "rejected": [USER]}, "rejected does not answer the prompt"),
        ("pairs", {"prompt": "7+5?", "chosen": "12", "rejected": "13", "margin": "a"}, "margin is 'a', not a number"),
        (
            "pairs",
            {"prompt": "?", "chosen": "1", "rejected": "2", "margin": float("nan")},
            "margin is nan, not a number",
        ),
        ("pairs", {"prompt": "?", "chosen": "1", "rejected": "2", "margin": float("inf")}, "margin is inf, and no"),
        ("pairs", {"prompt": "7+5?", "completion": "12", "label": True}, "chosen is missing"),
        ("labels", {"prompt": "7+5?", "completion": "12", "label": "yes"}, "label is 'yes', not true or false"),
        ("labels", {"completion": "12", "label": True}, "prompt is missing"),
    ],
)
def test_a_broken_row_is_refused_with_file_row_and_field(make, form, row, said):
    with pytest.raises(UserError, match=rf"1 broken rows: .*rows\.jsonl row 1: .*{said}") as error:
        make([row], form)
    assert "docs/data.md" in error.value.hint


def test_all_broken_rows_are_told_at_once(make):
    with pytest.raises(UserError, match=r"2 broken rows: .*row 1: .*row 3: "):
        make([{}, {"messages": [USER, ANSWER]}, {"messages": 5}])


def test_rows_that_the_template_breaks_are_refused_when_the_run_starts(make, tokenizer, monkeypatch):
    """Also where a truncation that cuts leaves the tokenising for later."""
    forgetful = tokenizer.chat_template.replace(
        "m['content']", "(m['content'] if loop.last or m['role'] == 'user' else '')"
    )
    monkeypatch.setattr(tokenizer, "chat_template", forgetful)
    ok, bad = {"messages": [USER, ANSWER]}, {"messages": [USER, ANSWER, MORE, ANSWER]}
    with pytest.raises(
        UserError, match=r"1 conversations .*as the chat template: .*row 2: renders message 1 otherwise"
    ):
        make([ok, bad], truncation="left")


def test_lengths_of_prompt_and_answer_are_bounded_apart(make, tokenizer):
    long = {"messages": [USER, {"role": "assistant", "content": "7 + 5 = 12, " * 9}]}
    rows = [{"messages": [USER, ANSWER]}, long]
    limits = {"max_prompt_length": 40, "max_response_length": 8}
    with pytest.raises(
        UserError, match=r"1 examples longer than data.max_prompt_length=40 or data.max_response_length=8"
    ) as error:
        make(rows, **limits)
    assert error.value.hint.startswith("raise data.max_response_length, or")
    kept = make(rows, filter_overlong_prompts=True, **limits)
    assert (len(kept), kept.removed) == (1, 1)
    cut = make(rows, truncation="left", **limits)
    short, t = (cut.group(row)[0] for row in cut.take([0, 1]))
    assert (short.finish, t.finish, len(t.response_ids)) == ("stop", "length", 8)
    assert learned(t, tokenizer) == tokenizer.decode(tokenizer("7 + 5 = 12, " * 9)["input_ids"][:8])  # the end is lost
    few = make(rows, truncation="left", max_prompt_length=4, max_response_length=200)
    whole = make(rows)[0].ids
    assert few.group(few[0])[0].ids[:4] == list(whole[-4:]) and few[0].ids == whole[-4:]


def test_the_filter_keeps_what_encoding_every_example_keeps(make):
    rows = [
        {"prompt": "short?", "extra_info": {"answer": answer}}
        for answer in ("a", "show your work " * 5, "\u00e9" * 20, "z" * 70, "\U0001f600" * 9)
    ]
    rows += [{"prompt": "long? " * 12, "extra_info": {"answer": "a"}}]
    every = make(rows, truncation="left", max_prompt_length=1000, max_response_length=1000)
    lengths = every.lengths(range(len(rows)))
    for longest, limits in ((max(p for p, _ in lengths), "prompt"), (max(a for _, a in lengths), "answer")):
        for limit in range(5, longest + 1):
            bounds = (limit, 1000) if limits == "prompt" else (1000, limit)
            expected = [i for i, (p, a) in enumerate(lengths) if p <= bounds[0] and a <= bounds[1]]
            cfg = {"max_prompt_length": bounds[0], "max_response_length": bounds[1]}
            if expected:
                assert make(rows, filter_overlong_prompts=True, **cfg).indexes == expected


def test_answers_are_part_of_what_the_data_set_is(make):
    one, other = ({"prompt": "7+5?", "chosen": "12", "rejected": r} for r in ("13", "14"))
    assert make([one], "pairs").content_hash() != make([other], "pairs").content_hash()
    assert make([one], "pairs").content_hash() == make([one], "pairs").content_hash()


def test_the_embedded_task_has_demonstrations_and_pairs(tokenizer):
    cfg = DataConfig(max_prompt_length=64, max_response_length=40, truncation="left")  # tokenises what is looked at
    parts = {
        (form, split): ExampleDataset("builtin:show-your-work", cfg, tokenizer, split, 0, form)
        for form in ("demonstrations", "pairs")
        for split in ("train", "val")
    }
    assert [len(data) for data in parts.values()] == [1699, 200, 1699, 200]
    questions = []
    for (form, _), data in parts.items():
        rows = data.take(range(20))
        questions.append({row.prompt[0]["content"] for row in rows})
        for chosen, *rejected in map(data.group, rows):
            assert chosen.sample == 0 and len(rejected) == (form == "pairs")
            work, _, gold = learned(chosen, tokenizer).removesuffix("<|im_end|>").partition("\n#### ")
            assert work.endswith(f"={gold}")
            assert all(f"#### {gold}<" not in learned(t, tokenizer) for t in rejected)
    assert questions[0] == questions[2] and questions[1] == questions[3] and not questions[0] & questions[1]


def test_the_form_follows_what_an_algorithm_needs():
    assert [form_of(needs) for needs in (("dataset",), ("dataset", "pairs"), ("dataset", "labels"))] == [
        "demonstrations",
        "pairs",
        "labels",
    ]


def test_pairs_of_equal_answers_are_counted_aloud(make, caplog):
    rows = [{"prompt": "7+5?", "chosen": "12", "rejected": other} for other in ("13", "12", "12")]
    make(rows, "pairs")
    (said,) = [record.getMessage() for record in caplog.records if "teach nothing" in record.getMessage()]
    assert said.startswith("2 pairs have equal answers and teach nothing, the first in ") and said.endswith("row 2")
