"""Run in an environment with reasoning-gym: every task is prepared, its answers are scored, and so are hostile texts.

Prints a JSON object: task -> what is wrong with it, for the tasks where something is; and counts.
"""

import json
import sys
import warnings
from collections import defaultdict

from verl_core.config.generated_data import ReasoningGymOptions
from verl_core.config.reasoning_gym_tasks import TASKS
from verl_core.data.prepare.prepared import Row, Wanted
from verl_core.data.prepare.reasoning_gym import OPEN, prepare
from verl_core.rewards.reasoning_gym import compute_score

MARK = "marker_of_the_model"
HOSTILE = (
    "",
    f"{MARK}()",
    f"[{MARK}()]",
    f"__import__('os').system('{MARK}')",
    f"(lambda: {MARK})()",
    f"{{'a': {MARK}}}",
    "().__class__.__bases__[0].__subclasses__()",
    "9**9**9**9",
    "x**(10**9)",
    "[" * 3000,
    "-" * 3000 + "1",
    "1" * 5000,
    "\x00",
)

wrong: dict[str, list[str]] = defaultdict(list)
counts = {"tasks": len(TASKS), "worked answers": 0, "hostile answers": 0}
evaluated: list[str] = []


def watch(event: str, arguments: tuple) -> None:
    """Python's own word for what is run: `exec` for evaluated text, and processes."""
    if event == "exec" and (MARK in arguments[0].co_names or arguments[0].co_filename == "<string>"):
        evaluated.append(str(arguments[0].co_names))
    elif event in ("os.system", "subprocess.Popen"):
        evaluated.append(event)


def score(row: Row, text: str) -> dict:
    return compute_score(row["data_source"], text, row["reward_model"]["ground_truth"], row["extra_info"])


def check(task: str, row: Row) -> None:
    answer = row["extra_info"].get("answer")
    if answer is None and row["reward_model"]["ground_truth"] != OPEN:
        wrong[task].append("its own answer has not full marks")
    if answer is not None:
        counts["worked answers"] += 1
        if score(row, answer)["acc"] != 1:
            wrong[task].append(f"{answer[:60]!r} is not right")
    for text in HOSTILE:
        counts["hostile answers"] += 1
        if score(row, f"<answer>{text}</answer>")["acc"] != 0:
            wrong[task].append(f"{text[:40]!r} is right")
    if evaluated:
        wrong[task].append(f"evaluated {evaluated}")
        evaluated.clear()


warnings.simplefilter("ignore")
options = ReasoningGymOptions(count=1, test_count=1)
made = {task: prepare(Wanted(f"reasoning-gym:{task}", options=options)).splits["train"] for task in TASKS}
for rows in made.values():
    score(rows[0], "")  # what a task's own modules run when they are first used is not the model's
sys.addaudithook(watch)
for task, rows in made.items():
    check(task, rows[0])
print(json.dumps({"wrong": wrong, **counts}))
