"""Any task of reasoning-gym (Stojanovski et al. 2025, arXiv 2505.24760; Apache-2.0): problems made by its generators
and scored by its verifiers."""

import json
import random as chance
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from random import Random
from typing import Any

from verl_core.config.errors import UserError
from verl_core.data.prepare.generated import generated
from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import prompt_row
from verl_core.rewards.reasoning_gym_tasks import EXTRA, PREFIX, make, packed

INSTRUCTION = "Think it through first, then give the final answer, and nothing else, between <answer> and </answer>."
OPEN = "whatever the task's verifier accepts"
"""The ground truth of a problem for which the task gives no answer of its own."""
BLOCK = 1_000  # problems asked of one data set
UNSOLVED = "Integral("  # sympy's way to say that it found no antiderivative: nothing that is read can be right


@dataclass(frozen=True)
class Entry:
    """What a task makes: question, answer (None where it gives none) and metadata; `worked`: its verifier gives the
    answer full marks."""

    content: dict[str, Any]
    worked: bool

    @property
    def key(self) -> str:
        return self.content["question"]


def prepare(wanted: Wanted) -> Prepared:
    """Distinct problems of the task by seed. Raises UserError for an unknown task, for settings that it does not have,
    for --source, and for a task that gives too few problems."""
    if wanted.source is not None:
        raise UserError(
            f"{wanted.name} is made, not read: --source {wanted.source} has no meaning", "leave --source out"
        )
    settings = wanted.options.set
    make(wanted.task, settings, seed=0, size=1)  # what is wrong with them shows before anything is drawn
    with redirect_stdout(sys.stderr):  # some generators print
        made = generated(
            wanted,
            lambda random: _entries(wanted, random),
            lambda entry, split, index: _row(wanted.task, settings, entry, split, index),
        )
    return Prepared(made.splits, f"{made.origin} by reasoning-gym {_version()}", needs=(EXTRA,))


def _entries(wanted: Wanted, random: Random) -> Iterator[Entry | None]:
    """Problems of one data set of the task after the other: some have no more than their size, or than they find, and
    with some the size decides what the first ones are."""
    while True:
        seed = random.randrange(2**31)
        dataset = make(wanted.task, wanted.options.set, seed=seed, size=BLOCK)
        for index in range(BLOCK):
            chance.seed(seed + index)  # list_functions draws from the process's own generator, too
            try:
                content = dataset[index]
            except IndexError:  # word_ladder: no more pairs of words
                yield None
                break
            answer = content["answer"]
            if UNSOLVED in str(answer):
                yield None
                continue
            yield Entry(content, isinstance(answer, str) and dataset.score_answer(answer.strip(), content) == 1)


def _row(task: str, settings: dict[str, Any], entry: Entry, split: str, index: int) -> Row:
    question, answer = entry.content["question"], entry.content["answer"]
    worked = {"answer": f"<answer>{answer}</answer>"} if entry.worked else {}
    try:
        kept = json.dumps({"settings": settings, "entry": packed(entry.content)})
    except TypeError as e:
        raise UserError(f"an entry of {task} cannot be kept as JSON: {e}", "prepare another task") from e
    gold = OPEN if answer is None else str(answer)
    content = f"{question.rstrip()}\n\n{INSTRUCTION}"
    return prompt_row(PREFIX + task, content, "reasoning", gold, split, index, **worked, reasoning_gym=kept)


def _version() -> str:
    from importlib.metadata import version

    return version(EXTRA)
