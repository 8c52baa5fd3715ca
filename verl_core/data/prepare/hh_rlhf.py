"""Helpful and harmless dialogues (Bai et al. 2022, arXiv 2204.05862) in three forms: demonstrations, pairs, and prompts
for a reward model. Read from Dahoas/full-hh-rlhf (112,052 + 12,451 rows of prompt, chosen, rejected) or from files of
Anthropic/hh-rlhf, where chosen and rejected are whole transcripts. MIT licence."""

from collections.abc import Callable

from verl_core.config.schema import DataConfig
from verl_core.data.example_rows import CHOSEN, ExampleRow, pair
from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import Record, pair_row, published, text
from verl_core.data.prepare.source import Layout

LAYOUT = Layout("Dahoas/full-hh-rlhf", {"train": "train", "test": "test"}, "prompt (or none), chosen, rejected")


def prepare(wanted: Wanted) -> Prepared:
    """Rows of the form `wanted.options.form`. The few transcripts that are no conversations are left out and counted.
    Raises UserError (`published`)."""
    form = FORMS[wanted.options.form]

    def row(record: Record, split: str, index: int) -> Row:
        whole = {key: _transcript(record, key) for key in ("chosen", "rejected")}
        return form(pair(whole, "", 0, DataConfig()), split, index)

    return published(wanted, LAYOUT, row, lenient=True)


def _transcript(record: Record, key: str) -> str:
    """Prompt and answer as `\\n\\nHuman: ...\\n\\nAssistant: ...`. Raises BrokenRow."""
    prompt = text(record, "prompt").strip() + " " if record.get("prompt") is not None else ""
    return "\n\n" + (prompt + text(record, key).strip()).strip()


def _sft(dialogue: ExampleRow, split: str, index: int) -> Row:
    return {
        "data_source": LAYOUT.hub,
        "messages": dialogue.messages + dialogue.answers[CHOSEN].turns,
        "extra_info": {"split": split, "index": index},
    }


def _pairs(dialogue: ExampleRow, split: str, index: int) -> Row:
    return pair_row(LAYOUT.hub, dialogue, split, index)


def _rl(dialogue: ExampleRow, split: str, index: int) -> Row:
    return {
        "data_source": LAYOUT.hub,
        "prompt": dialogue.messages,
        "ability": "alignment",
        "reward_model": {"style": "model", "ground_truth": dialogue.answers[CHOSEN].turns[0]["content"]},
        "extra_info": {"split": split, "index": index},
    }


FORMS: dict[str, Callable[[ExampleRow, str, int], Row]] = {"sft": _sft, "pairs": _pairs, "rl": _rl}
