"""The table of hand-made answers in answers/*.jsonl: one row {answer, gold, verdict, why, group} a line.

The verdict is what a careful teacher would say who sees question, gold answer and answer; where that can be argued,
`why` says so.
"""

import json
from pathlib import Path

FOLDER = Path(__file__).parent / "answers"


def rows(name: str) -> list[dict]:
    """The rows of answers/NAME.jsonl."""
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
