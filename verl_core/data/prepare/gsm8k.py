"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): 7,473 training and 1,319 test word problems, MIT licence."""

import re

from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import Record, prompt_row, published, text
from verl_core.data.prepare.source import Layout
from verl_core.data.rows import broken

LAYOUT = Layout("openai/gsm8k", {"train": "train", "test": "test"}, "question, answer", config="main")
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'  # veRL's, so that results compare
_GOLD = re.compile(r"####\s*(-?[\d.,]*\d)")


def prepare(wanted: Wanted) -> Prepared:
    """Questions with veRL's instruction; the gold is the number after `####`. Raises UserError (`published`)."""
    return published(wanted, LAYOUT, _row)


def _row(record: Record, split: str, index: int) -> Row:
    question, answer = text(record, "question"), text(record, "answer")
    gold = _GOLD.search(answer)
    if gold is None:
        broken(record, "answer", f"has no `#### NUMBER`: ...{answer[-40:]!r}")
    worked = {"answer": answer, "question": question}
    return prompt_row(LAYOUT.hub, f"{question} {INSTRUCTION}", "math", gold[1].replace(",", ""), split, index, **worked)
