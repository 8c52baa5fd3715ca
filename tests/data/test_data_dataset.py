import copy
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_core.config.errors import UserError
from verl_core.config.schema import DataConfig
from verl_core.data.dataset import PromptDataset


def row(text="How many now?", **changes):
    record = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": text}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "7"},
        "extra_info": {"index": 0},
    }
    return {k: v for k, v in {**record, **changes}.items() if v != "absent"}


@pytest.fixture
def make(tmp_path, tokenizer):
    def make(rows, split="train", seed=0, **cfg):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
        return PromptDataset(str(file), DataConfig(**cfg), tokenizer, split, seed)

    return make


def test_ids_are_the_chat_template_with_the_generation_prompt(make, tokenizer):
    data = make([row("Tom has 7 pens.")])
    text = "<|im_start|>user\nTom has 7 pens.<|im_end|>\n<|im_start|>assistant\n"
    assert data[0].ids == tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert tokenizer.decode(data[0].ids) == text
    assert (data[0].uid, data[0].index, data[0].data_source, data[0].ground_truth) == ("0-0", 0, "openai/gsm8k", "7")


def test_template_arguments_reach_the_template(make, tokenizer):
    data = make([row("Hi")], apply_chat_template_kwargs={"think": True})
    assert tokenizer.decode(data[0].ids).endswith("assistant\n<think>")


def test_null_and_absent_extra_info_are_empty_and_a_plain_string_is_a_user_message(make):
    data = make([row(extra_info=None), row(extra_info="absent"), row(prompt="Hello")])
    assert [r.extra_info for r in data.take(range(3))] == [{}, {}, {"index": 0}]
    assert data[2].prompt == [{"role": "user", "content": "Hello"}]


def test_parquet_as_veRL_writes_it_loads_with_system_messages_and_nulls(tmp_path, tokenizer):
    rows = [row("a"), row("b", prompt=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "b"}])]
    rows[1]["extra_info"] = None
    rows[0]["prompt"][0]["name"] = "Tom"  # Parquet gives every message this key; it is null in the others
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    data = PromptDataset(str(tmp_path / "x.parquet"), DataConfig(), tokenizer, "train", 0)
    assert data[1].extra_info == {} and data[1].prompt == rows[1]["prompt"]
    assert data[0].prompt[0]["name"] == "Tom"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (row(prompt="absent"), "prompt is missing; keys present: data_source, ability, reward_model, extra_info"),
        (row(prompt=[]), r"prompt is \[\], not a list of messages"),
        (row(prompt=5), "prompt is 5"),
        (row(prompt=[{"role": "user"}]), r"prompt\[0\].content is None"),
        (row(reward_model="absent"), "reward_model is missing"),
        (row(reward_model={"style": "rule"}), "reward_model.ground_truth is missing"),
        (row(reward_model={"ground_truth": float("nan")}), "reward_model.ground_truth is nan"),
        (row(reward_model="7"), "reward_model is '7', not an object"),
        (row(data_source=3), "data_source is 3, not a string"),
        (row(extra_info=[1]), "extra_info is"),
        ("{not json", "not JSON"),
        ("[1]", "not an object"),
    ],
)
def test_a_broken_row_is_refused_with_file_row_and_field(make, broken, said):
    with pytest.raises(UserError, match=rf"1 broken rows: .*rows\.jsonl row 2: .*{said}"):
        make([row(), broken, row()])


def test_all_broken_rows_are_reported_at_once_up_to_ten(make):
    with pytest.raises(UserError) as error:
        make([row(prompt="absent")] * 12 + [row()])
    assert error.value.message.startswith("12 broken rows")
    assert "row 10:" in error.value.message and "row 11:" not in error.value.message
    assert error.value.message.endswith("and 2 more")
    assert "\n" not in error.value.message


def lengths(data):
    return [len(r.ids) for r in data.take(range(len(data)))]


@pytest.mark.parametrize("mode", ["left", "right", "middle"])
@pytest.mark.parametrize("limit", [1, 8, 9])
def test_truncation_bounds_the_ids_that_are_sent(make, mode, limit):
    long = row("seven pens and " * 20)
    whole = make([long], max_prompt_length=4096)[0].ids
    data = make([long, row("Hi")], max_prompt_length=limit, truncation=mode)
    assert max(lengths(data)) <= limit
    head, tail = {"left": (0, limit), "right": (limit, 0), "middle": (limit // 2, limit - limit // 2)}[mode]
    assert data[0].ids == whole[:head] + whole[len(whole) - tail :]


def test_a_prompt_of_exactly_the_limit_is_whole_in_every_mode(make):
    ids = make([row("Hi")])[0].ids
    for mode in ("error", "left", "right", "middle"):
        assert make([row("Hi")], max_prompt_length=len(ids), truncation=mode)[0].ids == ids


def test_too_long_prompts_are_refused_by_name_unless_told_otherwise(make):
    with pytest.raises(
        UserError, match=r"1 prompts longer than data.max_prompt_length=16: .*row 2: \d+ tokens"
    ) as error:
        make([row("Hi"), row("seven pens " * 30)], max_prompt_length=16)
    assert "filter_overlong_prompts" in error.value.hint


def test_the_length_filter_keeps_file_order_and_counts(make):
    rows = [row("A"), row("x y z " * 40, data_source="other"), row("B", data_source="other"), row("C")]
    data = make(rows, max_prompt_length=24, filter_overlong_prompts=True)
    assert [r.prompt[0]["content"] for r in data.take(range(3))] == ["A", "B", "C"]
    assert [r.index for r in data.take(range(3))] == [0, 2, 3]
    assert (len(data), data.removed, data.data_sources) == (3, 1, {"openai/gsm8k", "other"})


def test_a_split_without_prompts_is_refused(make):
    with pytest.raises(UserError, match="no train prompts") as error:
        make([])
    assert error.value.hint == "the files have no rows: see data.train_files"
    with pytest.raises(UserError, match=r"all 1 prompts are longer than data.max_prompt_length=2"):
        make([row()], max_prompt_length=2, filter_overlong_prompts=True)


def test_max_samples_takes_the_first_for_validation_and_a_seeded_choice_for_shuffled_training(make):
    rows = [row(str(i)) for i in range(50)]

    def texts(**kwargs):
        data = make(rows, **kwargs)
        return [int(r.prompt[0]["content"]) for r in data.take(range(len(data)))]

    assert texts(split="val", val_max_samples=5) == [0, 1, 2, 3, 4]
    assert texts(train_max_samples=5, shuffle=False) == [0, 1, 2, 3, 4]
    chosen = texts(train_max_samples=5, seed=1)
    assert chosen == sorted(chosen) == texts(train_max_samples=5, seed=1) != [0, 1, 2, 3, 4]
    assert chosen != texts(train_max_samples=5, seed=2)
    assert len(texts(train_max_samples=500)) == 50
    for wrong in (0, -100):
        with pytest.raises(UserError, match=f"train_max_samples={wrong}"):
            texts(train_max_samples=wrong)


def test_validation_takes_each_row_once_in_file_order_whatever_the_batch_and_the_shuffle(make):
    """Case D14: no row is repeated to fill a batch, none is left out."""
    dataset = make([row(f"Question {i}") for i in range(10)], split="val", shuffle=True, train_batch_size=4)
    taken = dataset.take(range(len(dataset)))
    assert [r.prompt[0]["content"] for r in taken] == [f"Question {i}" for i in range(10)]


def test_content_hash_sees_every_change_and_nothing_else(make):
    rows = [row("a"), row("b")]
    base = make(rows).content_hash()
    assert make(rows, truncation="left").content_hash() == base  # tokenised or not makes no difference
    changed = [rows[::-1], rows[:1], [rows[0], row("c")], [rows[0], row("b", extra_info={"index": 1})]]
    assert len({base, *(make(r).content_hash() for r in changed)}) == 5


def test_without_a_chat_template_nothing_is_read(make, tokenizer, tmp_path):
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        PromptDataset(str(tmp_path / "absent.jsonl"), DataConfig(), bare, "train", 0)


def test_a_row_the_template_refuses_is_named(tmp_path, tokenizer):
    strict = copy.deepcopy(tokenizer)
    strict.chat_template = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('user first') }}{% endif %}ok"
    file = tmp_path / "rows.jsonl"
    rows = [row("a"), row(prompt=[{"role": "assistant", "content": "b"}])]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    with pytest.raises(UserError, match="row 2: the chat template refuses the prompt: user first"):
        PromptDataset(str(file), DataConfig(), strict, "train", 0)


def test_builtin_prompts_by_split(tokenizer):
    cfg = DataConfig(max_prompt_length=64)
    train = PromptDataset("builtin:show-your-work", cfg, tokenizer, "train", 0)
    val = PromptDataset("builtin:show-your-work", cfg, tokenizer, "val", 0)
    assert (len(train), len(val), train[0].file) == (1699, 200, "builtin:show-your-work")
