"""MBPP (Austin et al. 2021, arXiv 2108.07732): short Python programs that have to pass three asserts. 374 training
(task 601 to 974) and 500 test tasks (11 to 510), by the authors' numbers. CC BY 4.0."""

import json

from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import Record, prompt_row, published, text
from verl_core.data.prepare.source import Layout
from verl_core.data.rows import broken, short

LAYOUT = Layout(
    "google-research-datasets/mbpp",
    {"train": "train", "test": "test"},
    "task_id, text, code, test_list, test_setup_code",
    config="full",
    files=("mbpp.jsonl", "mbpp.jsonl.gz"),
)
TASKS = {"train": range(601, 975), "test": range(11, 511)}
INSTRUCTION = "Write it in Python, the whole program in one ```python block. It has to pass these tests:"


def prepare(wanted: Wanted) -> Prepared:
    """Tasks with their tests in the prompt, which alone name the function. Raises UserError (`published`)."""
    return published(wanted, LAYOUT, _row)


def _row(record: Record, split: str, index: int) -> Row | None:
    task, tests = record.get("task_id"), record.get("test_list")
    if not isinstance(task, int):
        broken(record, "task_id", f"is {short(task)}, not a number")
    if task not in TASKS[split]:
        return None
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        broken(record, "test_list", f"is {short(tests)}, not a list of asserts")
    listed = "\n".join(tests)
    question = f"{text(record, 'text').strip()}\n\n{INSTRUCTION}\n```python\n{listed}\n```"
    gold = json.dumps({"tests": tests, "setup": record.get("test_setup_code") or ""})
    told = {"answer": f"```python\n{text(record, 'code')}\n```", "task_id": task}
    return prompt_row("mbpp", question, "code", gold, split, index, **told)
