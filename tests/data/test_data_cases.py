"""Faults that other systems had with data and tokenisation: where each one is proven absent, and tests of those that
need several parts together."""

import ast
import asyncio
import json
import os
import signal

import pytest

from tests.conftest import ROOT
from verl_core.config.compose import resolve
from verl_core.config.errors import UserError
from verl_core.config.schema import DataConfig
from verl_core.data.dataset import PromptDataset
from verl_core.data.examples import ExampleDataset
from verl_core.data.files import resolve as files_of
from verl_core.rollout.agent_loop import SingleTurn, Task
from verl_core.rollout.protocol import Completion, Sampling

# What goes wrong elsewhere, and the tests, below tests/, that fail if it does here.
HERE, DATASET, FILES = "data/test_data_cases.py", "data/test_data_dataset.py", "data/test_data_files.py"
CONVERSATION, DEMONSTRATIONS = "data/test_data_conversation.py", "data/test_data_demonstrations.py"
CASES = {
    "D1": (
        "a row without extra_info ends the run",
        [(DATASET, "test_null_and_absent_extra_info_are_empty_and_a_plain_string_is_a_user_message")],
    ),
    "D3": (
        "the length filter changes the order of rows; a negative number of rows crashes",
        [
            (DATASET, "test_the_length_filter_keeps_file_order_and_counts"),
            ("data/test_data_lengths.py", "test_the_filter_keeps_what_tokenising_every_row_keeps"),
            (HERE, "test_a_negative_number_of_rows_is_refused_up_front"),
        ],
    ),
    "D4": (
        "a list of files is taken for one path, JSON lines are refused",
        [
            (FILES, "test_path_list_folder_glob_and_home_are_all_accepted"),
            (FILES, "test_every_format_reads_the_same_records"),
            (HERE, "test_a_list_of_files_from_yaml_is_a_list_of_files"),
        ],
    ),
    "D5": (
        "a prompt that is cut reaches the engine whole",
        [
            (DATASET, "test_truncation_bounds_the_ids_that_are_sent"),
            (HERE, "test_the_engine_gets_the_ids_that_were_cut"),
        ],
    ),
    "D7": (
        "arguments of the template shift the loss mask",
        [(HERE, "test_the_mask_follows_the_template_and_its_arguments")],
    ),
    "D8": (
        "the first token of the answer is never trained",
        [
            (DEMONSTRATIONS, "test_the_mask_covers_the_answer_from_its_first_token_to_the_end_of_sequence"),
            (CONVERSATION, "test_every_turn_of_the_assistant_is_learned_with_its_end_token_and_nothing_else"),
        ],
    ),
    "D9": (
        "text is read in the locale's encoding",
        [
            (FILES, "test_text_is_utf8_whatever_the_locale_says"),
            (
                "data/test_data_prepare.py",
                "test_the_job_is_a_module_whose_stdout_is_json_and_whose_texts_are_utf8_in_any_locale",
            ),
        ],
    ),
    "D10": (
        "reasoning blocks and first tokens of answers are lost",
        [
            (CONVERSATION, "test_answers_survive_exactly_whatever_they_hold"),
            (CONVERSATION, "test_a_template_that_rewrites_earlier_turns_is_refused"),
            (DEMONSTRATIONS, "test_answers_survive_exactly_whatever_they_hold"),
        ],
    ),
    "D11": (
        "an answer that is tokenised again has other ids than were sampled",
        [
            (HERE, "test_sampled_ids_are_kept_where_the_tokenizer_would_choose_others"),
            (CONVERSATION, "test_a_tokenizer_that_joins_text_over_the_border_is_made_to_stop_there"),
        ],
    ),
    "D14": (
        "validation is shuffled, or its last batch dropped",
        [(DATASET, "test_validation_takes_each_row_once_in_file_order_whatever_the_batch_and_the_shuffle")],
    ),
    "D15": (
        "workers forked for the length filter hang",
        [
            (HERE, "test_measuring_forks_nothing_and_says_how_far_it_is"),
            (HERE, "test_a_process_forked_after_measuring_can_tokenise"),
        ],
    ),
    "D16": (
        "a missing field is a bare KeyError",
        [
            (DATASET, "test_a_broken_row_is_refused_with_file_row_and_field"),
            ("data/test_data_examples.py", "test_a_broken_row_is_refused_with_file_row_and_field"),
        ],
    ),
    # There are no vision models, hence no processor: rows with media are refused.
    "D17": (
        "the processor has another template than the tokenizer",
        [("data/test_data_prepare_published.py", "test_files_with_pictures_are_refused_by_one_line")],
    ),
}


@pytest.mark.parametrize(("file", "name"), [test for _, tests in CASES.values() for test in tests])
def test_each_case_has_its_tests(file, name):
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def write(file, texts):
    rows = [{"data_source": "s", "prompt": text, "reward_model": {"ground_truth": "1"}} for text in texts]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_a_negative_number_of_rows_is_refused_up_front(tmp_path, tokenizer):
    """Case D3: the last 100 rows are not what -100 says."""
    with pytest.raises(UserError, match=r"data.train_max_samples=-100 .* is not in"):
        resolve("smoke", ["data.train_max_samples=-100"])
    with pytest.raises(UserError, match=r"data.val_max_samples=-100 is not a number of rows"):
        PromptDataset(write(tmp_path / "a.jsonl", "ab"), DataConfig(val_max_samples=-100), tokenizer, "val", 0)


def test_a_list_of_files_from_yaml_is_a_list_of_files(tmp_path):
    """Case D4."""
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path / name, ["x"])
    file = tmp_path / "own.yaml"
    file.write_text(f"extends: smoke\ndata:\n  train_files:\n  - {tmp_path}/b.jsonl\n  - {tmp_path}/a.jsonl\n")
    found = files_of(resolve(None, [], file).config.data.train_files, "train")
    assert [path.name for path in found] == ["b.jsonl", "a.jsonl"]


@pytest.mark.parametrize("mode", ["left", "right", "middle"])
def test_the_engine_gets_the_ids_that_were_cut(tmp_path, tokenizer, mode):
    """Case D5: 558 tokens, limit 512."""
    texts = ["x" * 558]
    cfg = DataConfig(truncation=mode, max_prompt_length=512, apply_chat_template_kwargs={"chat_template": PLAIN})
    data = PromptDataset(write(tmp_path / "a.jsonl", texts), cfg, tokenizer, "train", 0)
    asked = []

    async def generate(request):
        asked.append(request)
        return Completion(request.request_id, ids=[1], logps=[0.0], versions=[0], finish="stop")

    task = Task("g", 0, data[0].ids, Sampling(max_tokens=1), seed=0)
    (trajectory,) = asyncio.run(SingleTurn().run(task, generate))
    assert data.lengths([0]) == [(558, 0)] and len(asked[0].ids) == 512
    assert tuple(trajectory.ids[:512]) == asked[0].ids == data[0].ids


PLAIN = "{{ messages[0].content }}"
SYSTEM_LINE = (
    "<|im_start|>system\n{{ line | default('Be brief.') }}<|im_end|>\n"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("arguments", [{}, {"line": "A much longer line than the template's own is."}, {"line": ""}])
def test_the_mask_follows_the_template_and_its_arguments(tmp_path, tokenizer, arguments):
    """Case D7: what is learned is the answer, checked by decoding."""
    turns = [{"role": "user", "content": "7+5?"}, {"role": "assistant", "content": "It is 12."}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    cfg = DataConfig(apply_chat_template_kwargs={"chat_template": SYSTEM_LINE, **arguments})
    data = ExampleDataset(str(tmp_path / "a.jsonl"), cfg, tokenizer, "train", 0, "demonstrations")
    (t,) = data.group(data[0])
    assert tokenizer.decode([i for i, m in zip(t.ids, t.mask, strict=True) if m]) == "It is 12.<|im_end|>"
    assert f"system\n{arguments.get('line', 'Be brief.')}<|im_end|>" in tokenizer.decode(t.ids)


def test_sampled_ids_are_kept_where_the_tokenizer_would_choose_others(tokenizer):
    """Case D11: "pens" sampled letter by letter. A trajectory has the ids that were sampled, not those of its text; a
    prompt's ids, too, are sent and trained as they were made."""
    prompt = tokenizer("Tom has", add_special_tokens=False)["input_ids"]
    letters = [i for letter in " pens" for i in tokenizer(letter, add_special_tokens=False)["input_ids"]]
    assert tokenizer(tokenizer.decode(letters), add_special_tokens=False)["input_ids"] != letters

    async def generate(request):
        return Completion(
            request.request_id, ids=letters, logps=[-1.0] * len(letters), versions=[0] * len(letters), finish="stop"
        )

    (t,) = asyncio.run(SingleTurn().run(Task("g", 0, tuple(prompt), Sampling(max_tokens=9), seed=0), generate))
    assert t.ids == [*prompt, *letters] and t.mask == [0] * len(prompt) + [1] * len(letters)
    assert len(t.logps) == len(t.ids)


def test_measuring_forks_nothing_and_says_how_far_it_is(tmp_path, tokenizer, monkeypatch, caplog):
    """Case D15: the tokenizer's own threads do the work."""

    def fork():
        raise AssertionError("forked")

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr("verl_core.data.dataset.TOLD_EVERY_S", 0)
    file = write(tmp_path / "a.jsonl", [f"How many is {i}?" for i in range(2500)])
    with caplog.at_level("INFO"):
        PromptDataset(file, DataConfig(filter_overlong_prompts=True, max_prompt_length=20), tokenizer, "train", 0)
    assert "train: 1024 of 2500 prompts measured" in caplog.text


def test_a_process_forked_after_measuring_can_tokenise(tmp_path, tokenizer, monkeypatch):
    """Case D15: threads of a tokenizer do not live on in a forked process, which waits for them for ever."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # as a job has it
    file = write(tmp_path / "a.jsonl", [f"How many is {i}?" for i in range(100)])
    data = PromptDataset(file, DataConfig(max_prompt_length=30), tokenizer, "train", 0)
    assert data.take(range(50)) and os.environ["TOKENIZERS_PARALLELISM"] == "false"
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        same = tokenizer([row.prompt[0]["content"] for row in data.take(range(100))])["input_ids"]
        os._exit(0 if len(same) == 100 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
