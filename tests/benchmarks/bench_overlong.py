"""Rows a second of the over-long filter, against tokenising every prompt by itself: GSM8K and a real tokenizer.

    uv run python tests/benchmarks/bench_overlong.py ~/data/gsm8k --model Qwen/Qwen2.5-0.5B-Instruct

DATA is a file or a folder; of a folder both splits are read. Prints one JSON line. Both sides keep the same rows, or
the program ends with 1. `rows_per_s` is of the median of `--runs` filterings of rows that are read already: the chat
template on all, the tokenizer on those that are not short by their bytes, which are `tokenised`. `naive_rows_per_s`
renders and tokenises one prompt at a time, without threads.
"""

import argparse
import json
import os
import statistics
import sys
import time

from transformers import AutoTokenizer

from verl_core.config.schema import DataConfig
from verl_core.data.dataset import PromptDataset


class Timed(PromptDataset):
    """Knows how long its filter took, and how many prompts were tokenised for it."""

    seconds, tokenised = 0.0, 0

    def _filter_overlong(self) -> None:
        began = time.perf_counter()
        super()._filter_overlong()
        self.seconds, self.tokenised = time.perf_counter() - began, len(self._ids)


def one_by_one(dataset: PromptDataset, limit: int) -> tuple[float, list[int]]:
    """Seconds, and the indexes of the rows that are kept."""
    tokenizer, kept = dataset.tokenizer, []
    began = time.perf_counter()
    for position in range(len(dataset)):
        messages = dataset.raw(position).messages
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        if len(tokenizer(text, add_special_tokens=False)["input_ids"]) <= limit:
            kept.append(position)
    return time.perf_counter() - began, kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", required=True)
    parser.add_argument("--limit", type=int, default=512, help="data.max_prompt_length")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    rows, tokenised, ours, naive, same = 0, 0, [0.0] * args.runs, 0.0, True
    for split in ("train", "val"):
        every = PromptDataset(args.data, DataConfig(truncation="left"), tokenizer, split, 0)
        took, expected = one_by_one(every, args.limit)
        naive, rows = naive + took, rows + len(every)
        filtering = DataConfig(filter_overlong_prompts=True, max_prompt_length=args.limit)
        for run in range(args.runs):
            kept = Timed(args.data, filtering, tokenizer, split, 0)
            ours[run] += kept.seconds
            same = same and kept.indexes == expected
        tokenised += kept.tokenised
    ours_s = statistics.median(ours)
    line = {
        "rows": rows,
        "kept_rows_equal": same,
        "max_prompt_length": args.limit,
        "tokenised": tokenised,
        "rows_per_s": round(rows / ours_s),
        "seconds": [round(s, 3) for s in ours],
        "naive_rows_per_s": round(rows / naive),
        "cores": len(os.sched_getaffinity(0)),
        "model": args.model,
    }
    print(json.dumps(line))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
