"""Countdown, made here: reach a target with some numbers, each used once (the task of TinyZero, and of a television
game before it). Every problem is solvable, because its target is the value of an expression of its numbers."""

from dataclasses import dataclass
from itertools import count
from random import Random

from verl_core.config.generated_data import CountdownOptions
from verl_core.data.prepare.generated import generated, refuse_changed
from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import Record, prompt_row, published
from verl_core.data.prepare.source import Layout
from verl_core.data.rows import broken, present, short
from verl_core.rewards.countdown import compute_score

DATA_SOURCE = "countdown"
LAYOUT = Layout("", {"train": "train", "test": "test"}, "metadata: {numbers, target}, answer: an expression, if any")
QUESTION = (
    "Using the numbers {numbers}, write an arithmetic expression that equals {target}. Use every number exactly once, "
    "and nothing else but +, -, *, / and parentheses. Think it through first, then give the expression between "
    "<answer> and </answer>, for example <answer>(1 + 2) / 3</answer>."
)


@dataclass(frozen=True)
class Puzzle:
    """Numbers in the order shown, the target, and an expression of the numbers with the target's value, if known."""

    numbers: tuple[int, ...]
    target: int
    solution: str | None

    @property
    def key(self) -> tuple[tuple[int, ...], int]:
        """The order of the numbers makes no other problem."""
        return tuple(sorted(self.numbers)), self.target


def prepare(wanted: Wanted) -> Prepared:
    """Problems made by seed; with `--source`, those of files as reasoning-gym writes its task countdown.

    Raises UserError for options that allow too few problems, and as `published` does.
    """
    if wanted.source is not None:
        refuse_changed(wanted)
        return published(wanted, LAYOUT, lambda record, split, index: _row(_read(record), split, index))
    return generated(wanted, lambda random: (draw(random, wanted.options) for _ in count()), _row)


def draw(random: Random, options: CountdownOptions) -> Puzzle | None:
    """A puzzle, or None where the target came out beyond the options' bounds. All steps on the way are whole numbers
    from 1."""
    how_many = random.randint(options.min_numbers, options.max_numbers)
    numbers = tuple(random.randint(1, options.max_number) for _ in range(how_many))
    terms = [(n, str(n)) for n in numbers]
    while len(terms) > 1:
        random.shuffle(terms)
        (a, left), (b, right) = sorted((terms.pop(), terms.pop()), key=lambda term: term[0], reverse=True)
        fitting = {"+": a + b, "*": a * b} | ({"-": a - b} if a > b else {}) | ({"/": a // b} if a % b == 0 else {})
        sign = random.choice(list(fitting))
        terms.append((fitting[sign], f"({left} {sign} {right})"))
    target, solution = terms[0]
    if not options.min_target <= target <= options.max_target:
        return None
    return Puzzle(numbers, target, solution[1:-1])


def _row(puzzle: Puzzle, split: str, index: int) -> Row:
    numbers = [str(n) for n in puzzle.numbers]
    content = QUESTION.format(numbers=f"{', '.join(numbers[:-1])} and {numbers[-1]}", target=puzzle.target)
    gold = {"target": puzzle.target, "numbers": list(puzzle.numbers)}
    worked = {} if puzzle.solution is None else {"answer": f"<answer>{puzzle.solution}</answer>"}
    return prompt_row(DATA_SOURCE, content, "math", gold, split, index, **worked)


def _read(record: Record) -> Puzzle:
    """Raises BrokenRow for a record without numbers and target, or whose answer does not solve it."""
    metadata = present(record, "metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    target, numbers = metadata.get("target"), metadata.get("numbers")
    if not isinstance(target, int) or isinstance(target, bool):
        broken(record, "metadata.target", f"is {short(target)}, not a whole number")
    if not isinstance(numbers, list) or len(numbers) < 2 or not all(type(n) is int for n in numbers):
        broken(record, "metadata.numbers", f"is {short(numbers)}, not a list of at least two whole numbers")
    solution = record.get("answer")
    if solution is not None:
        verdict = compute_score(DATA_SOURCE, f"<answer>{solution}</answer>", metadata)
        if not verdict["score"]:
            broken(record, "answer", f"does not solve it ({verdict['reason']}): {short(solution)}")
    return Puzzle(tuple(numbers), target, solution)
