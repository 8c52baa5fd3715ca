"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): 7,473 training and 1,319 test word problems, MIT licence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from verl_core.config.errors import UserError
from verl_core.data.files import SUFFIXES, read_records
from verl_core.data.prepare.prepared import Prepared, Row
from verl_core.data.rows import raise_for

HUB_NAME, HUB_CONFIG = "openai/gsm8k", "main"
SPLITS = ("train", "test")
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'  # veRL's, so that results compare
_GOLD = re.compile(r"####\s*(-?[\d.,]*\d)")


def prepare(source: Path | None = None, limit: int | None = None) -> Prepared:
    """The rows of both splits, at most `limit` each.

    source: folder with `train` and `test` as .jsonl, .jsonl.gz or Parquet, rows {question, answer}; None: the hub.
    Raises UserError for absent files, an unreachable hub, and broken rows with their file and line.
    """
    records = {split: _local(source, split) if source else _hub(split) for split in SPLITS}
    broken: list[tuple[str, int, str]] = []
    splits = {split: _rows(split, islice(records[split], limit), broken) for split in SPLITS}
    raise_for(broken, "broken rows", hint="a row is {question, answer}, the answer ending in `#### NUMBER`")
    return Prepared(splits, str(source) if source else f"hub:{HUB_NAME}/{HUB_CONFIG}")


def _rows(split: str, records: Iterable[tuple[str, int, Any]], broken: list[tuple[str, int, str]]) -> list[Row]:
    rows = []
    for index, (file, number, record) in enumerate(records):
        try:
            rows.append(_row(split, index, record))
        except ValueError as e:
            broken.append((file, number, str(e)))
    return rows


def _row(split: str, index: int, record: Any) -> Row:
    """Raises ValueError for a record without question, answer or gold number."""
    if isinstance(record, ValueError):
        raise record
    if not isinstance(record, dict):
        raise ValueError(f"the row is a {type(record).__name__}, not an object")
    for field in ("question", "answer"):
        if not isinstance(record.get(field), str):
            raise ValueError(f"{field} is missing or not a string; keys present: {', '.join(record) or 'none'}")
    gold = _GOLD.search(record["answer"])
    if gold is None:
        raise ValueError(f"answer has no `#### NUMBER`: ...{record['answer'][-40:]!r}")
    return {
        "data_source": HUB_NAME,
        "prompt": [{"role": "user", "content": f"{record['question']} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": gold[1].replace(",", "")},
        "extra_info": {"split": split, "index": index, "answer": record["answer"], "question": record["question"]},
    }


def _local(source: Path, split: str) -> Iterable[tuple[str, int, Any]]:
    named = [source / f"{split}{suffix}" for suffix in SUFFIXES]
    files = [f for f in named if f.is_file()][:1] or sorted(
        source.glob(f"**/{split}-*.parquet")
    )  # the hub's own layout
    if not files:
        raise UserError(
            f"{source} has no {split} file", hint=f"it should hold {split}.jsonl, {split}.jsonl.gz or Parquet"
        )
    return ((str(file), number, record) for file in files for number, record in read_records(file))


def _hub(split: str) -> Iterable[tuple[str, int, Any]]:
    try:
        from datasets import load_dataset

        rows = load_dataset(HUB_NAME, HUB_CONFIG, split=split)
    except Exception as e:  # the hub's client raises errors of several libraries
        raise UserError(
            f"{HUB_NAME} cannot be fetched from the hub: {str(e).splitlines()[0] if str(e) else type(e).__name__}",
            hint="fetch its train and test files elsewhere and give their folder: rlx prepare gsm8k --source DIR",
        ) from e
    return ((f"{HUB_NAME} {split}", number, row) for number, row in enumerate(rows, start=1))
