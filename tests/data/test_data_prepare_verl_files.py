"""Files in exactly the columns that veRL's preparation scripts write (nested, with Parquet's nulls) load unchanged."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_core.config.schema import DataConfig
from verl_core.data.dataset import PromptDataset
from verl_core.data.examples import ExampleDataset

ASK = [{"role": "user", "content": "How many?"}]
RULE = {"style": "rule", "ground_truth": "4"}


def tools(name, **create_kwargs):
    return {"need_tools_kwargs": True, "tools_kwargs": {name: {"create_kwargs": create_kwargs}}}


def place(**more):
    return {"split": "train", "index": 0, **more}


# what made it: a row
PROMPTS = {
    "gsm8k": {
        "data_source": "openai/gsm8k",
        "prompt": ASK,
        "ability": "math",
        "reward_model": RULE,
        "extra_info": place(answer="2+2=4\n#### 4", question="How many?"),
    },
    "gsm8k with a tool": {
        "data_source": "openai/gsm8k",
        "agent_name": "tool_agent",
        "prompt": [{"role": "system", "content": "You may calculate."}, *ASK],
        "ability": "math",
        "reward_model": RULE,
        "extra_info": place(
            answer="#### 4",
            question="How many?",
            interaction_kwargs={"query": "How many?", "ground_truth": "4"},
            **tools("calc_gsm8k_reward", ground_truth="4"),
        ),
    },
    "math": {
        "data_source": "DigitalLearningGmbH/MATH-lighteval",
        "prompt": ASK,
        "ability": "math",
        "reward_model": RULE,
        "extra_info": place(),
    },
    "dapo with a tool": {
        "data_source": "math_dapo",
        "prompt": ASK,
        "ability": "MATH",
        "reward_model": {"ground_truth": "4", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4", **tools("code_interpreter", ground_truth="4")},
        "agent_name": "tool_agent",
    },
    "search-r1": {
        "data_source": "searchR1_nq",
        "agent_name": "tool_agent",
        "prompt": [{"role": "system", "content": "You may search."}, *ASK],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": {"target": ["four", "4"]}, "style": "rule"},
        "extra_info": place(question="How many?", **tools("search", ground_truth={"target": ["four"]}, question="?")),
        "metadata": None,
    },
    "hellaswag": {
        "data_source": "Rowan/hellaswag",
        "prompt": ASK,
        "ability": "nlp",
        "reward_model": {
            "style": "model",
            "eval": "multiple_choice",
            "ground_truth": "2",
            "choices": ["a", "b", "c", "d"],
        },
        "extra_info": place(),
    },
    "hh-rlhf for rl": {
        "data_source": "Dahoas/full-hh-rlhf",
        "prompt": ASK,
        "ability": "alignment",
        "reward_model": {"style": "model", "ground_truth": " Four."},
        "extra_info": place(),
    },
}
TALK = [*ASK, {"role": "assistant", "content": "Four."}]
EXAMPLES = {
    "gsm8k, several turns": ({"messages": TALK, "extra_info": place()}, "demonstrations", {}),
    "gsm8k's worked answers": (PROMPTS["gsm8k"], "demonstrations", {}),
    "hh-rlhf for sft": ({"prompt": "How many?", "response": "Four."}, "demonstrations", {"response_key": "response"}),
    "hh-rlhf for rm": ({"prompt": "How many?", "chosen": "Four.", "rejected": "Five."}, "pairs", {}),
}


@pytest.mark.parametrize("made", PROMPTS)
def test_prompts(made, tmp_path, tokenizer):
    """The second row has no extra_info: null in the file, an empty object for the rule."""
    row = PROMPTS[made]
    pq.write_table(pa.Table.from_pylist([row, row | {"extra_info": None}]), tmp_path / "train.parquet")
    first, second = PromptDataset(str(tmp_path), DataConfig(), tokenizer, "train", 0).take([0, 1])
    assert (first.data_source, first.prompt) == (row["data_source"], row["prompt"])
    assert first.ground_truth == second.ground_truth == row["reward_model"]["ground_truth"]
    assert first.extra_info == row["extra_info"] and second.extra_info == {}


@pytest.mark.parametrize("made", EXAMPLES)
def test_answers_to_learn_from(made, tmp_path, tokenizer):
    row, form, keys = EXAMPLES[made]
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "train.parquet")
    data = ExampleDataset(str(tmp_path), DataConfig(**keys), tokenizer, "train", 0, form)
    answers = [tokenizer.decode(answer.ids) for answer in data.group(data[1])]
    wanted = {"pairs": ["Four.", "Five."]}.get(form, ["2+2=4\n#### 4" if row is PROMPTS["gsm8k"] else "Four."])
    for answer, text in zip(answers, wanted, strict=True):
        assert answer.endswith(f"assistant\n{text}<|im_end|>")
