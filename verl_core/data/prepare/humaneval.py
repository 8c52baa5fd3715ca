"""HumanEval (Chen et al. 2021, arXiv 2107.03374): 164 Python functions to complete, for testing only. MIT licence."""

import json
import re

from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import Record, prompt_row, published, text
from verl_core.data.prepare.source import Layout
from verl_core.data.rows import broken

LAYOUT = Layout(
    "openai/openai_humaneval",
    {"test": "test"},
    "task_id, prompt, entry_point, canonical_solution, test",
    config="openai_humaneval",
    files=("HumanEval.jsonl", "HumanEval.jsonl.gz", "data/HumanEval.jsonl.gz"),
)
INSTRUCTION = "Complete this Python function. Give the whole function in one ```python block."


def prepare(wanted: Wanted) -> Prepared:
    """Functions by signature and description. Raises UserError (`published`)."""
    return published(wanted, LAYOUT, _row)


def _row(record: Record, split: str, index: int) -> Row:
    prompt, name, check = text(record, "prompt"), text(record, "entry_point"), text(record, "test")
    heads = list(re.finditer(rf"^def {re.escape(name)}\b", prompt, re.MULTILINE))
    if not heads:
        broken(record, "prompt", f"defines no function {name}")
    before = prompt[: heads[-1].start()]  # imports and helpers, which answers and tests use without repeating them
    tests = {"tests": [f"{check}\ncheck(candidate)"], "setup": before, "entry_point": name, "preamble": before}
    answer = f"```python\n{prompt}{text(record, 'canonical_solution')}\n```"
    told = {"answer": answer, "task_id": text(record, "task_id")}
    question = f"{INSTRUCTION}\n\n```python\n{prompt}\n```"
    return prompt_row("humaneval", question, "code", json.dumps(tests), split, index, **told)
