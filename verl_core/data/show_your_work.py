"""The embedded task: word problems with two operations on the digits 1..9, answered by worked lines and `#### N`.

    Tom has 7 pens, buys 5 and loses 3. How many now?        7+5=12
                                                             12-3=9
                                                             #### 9

There are 1,899 problems (operations and digits) whose intermediate and final values are not negative; 200 of them, by
seed, are held out of the demonstrations and of RL. Pure Python, and every draw is keyed by the seed.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

DATA_SOURCE = "rlx/show-your-work"
HELD_OUT = 200
LARGEST_VALUE = 27  # 9 + 9 + 9

NAMES = ("Tom", "Mia", "Sam", "Ana", "Leo", "Zoe", "Max", "Ivy")
THINGS = ("apples", "books", "coins", "pens", "eggs", "cakes")
STORIES = {
    "++": "{name} has {a} {things}, buys {b} and finds {c}. How many now?",
    "+-": "{name} has {a} {things}, buys {b} and loses {c}. How many now?",
    "-+": "{name} has {a} {things}, loses {b} and buys {c}. How many now?",
    "--": "{name} has {a} {things}, loses {b} and eats {c}. How many now?",
}


@dataclass(frozen=True)
class Problem:
    """Two operations ("+" or "-") on three digits."""

    operations: str
    a: int
    b: int
    c: int

    @property
    def middle(self) -> int:
        return self.a + self.b if self.operations[0] == "+" else self.a - self.b

    @property
    def gold(self) -> int:
        return self.middle + self.c if self.operations[1] == "+" else self.middle - self.c

    @property
    def worked(self) -> str:
        """The right answer, with its work shown."""
        return self.answer(self.gold)

    def answer(self, value: int) -> str:
        """Two lines of arithmetic, the second of which comes to `value`, then `#### value`."""
        first, second = self.operations[0], self.operations[1]
        return f"{self.a}{first}{self.b}={self.middle}\n{self.middle}{second}{self.c}={value}\n#### {value}"

    def question(self, rng: random.Random) -> str:
        """The problem as a story, its name and things drawn from `rng`."""
        story = STORIES[self.operations]
        return story.format(name=rng.choice(NAMES), things=rng.choice(THINGS), a=self.a, b=self.b, c=self.c)


def problems() -> list[Problem]:
    """All 1,899 problems, in a fixed order."""
    digits = range(1, 10)
    every = (Problem(operations, a, b, c) for operations in STORIES for a in digits for b in digits for c in digits)
    return [p for p in every if p.middle >= 0 and p.gold >= 0]


def split_problems(seed: int) -> tuple[list[Problem], list[Problem]]:
    """The 1,699 training and the 200 held-out problems of this seed."""
    every = problems()
    _rng("split", seed).shuffle(every)
    return every[HELD_OUT:], every[:HELD_OUT]


def rows(split: Literal["train", "test"], seed: int) -> list[dict[str, Any]]:
    """Every problem of the split once, as rows with veRL's columns."""
    train, test = split_problems(seed)
    rng = _rng(f"rows/{split}", seed)
    return [_row(p, p.question(rng), split, i) for i, p in enumerate(train if split == "train" else test)]


def pairs(split: Literal["train", "test"], seed: int) -> list[dict[str, Any]]:
    """Every problem of the split once: the worked answer against a bare guess, or one whose second line is wrong, in
    turn."""
    rng = _rng(f"pairs/{split}", seed)
    found = []
    for i, (row, p) in enumerate(zip(rows(split, seed), split_problems(seed)[split == "test"], strict=True)):
        wrong = rng.choice([n for n in range(LARGEST_VALUE + 1) if n != p.gold])
        rejected = p.answer(wrong) if i % 2 else f"#### {wrong}"
        found.append(
            {name: row[name] for name in ("data_source", "prompt")} | {"chosen": p.worked, "rejected": rejected}
        )
    return found


def demonstrations(part: Literal["worked", "habit"], n: int, seed: int) -> list[tuple[str, str]]:
    """`n` (question, answer) pairs on training problems.

    "worked" shows the work every time. "habit" teaches a base policy that mostly guesses: three in four answers are
    `#### <random number>`, one in four is worked; RL then has something to discover.
    """
    rng = _rng(f"demonstrations/{part}", seed)
    train, _ = split_problems(seed)
    pairs: list[tuple[str, str]] = []
    for problem in _endless(train, rng):
        if len(pairs) == n:
            break
        guesses = part == "habit" and rng.random() < 0.75
        answer = f"#### {rng.randint(0, LARGEST_VALUE)}" if guesses else problem.worked
        pairs.append((problem.question(rng), answer))
    return pairs


def corpus(seed: int) -> list[str]:
    """1,200 strings to train a tokenizer on: both sides of 600 conversations, role names included, no chat markup."""
    turns = demonstrations("worked", 600, seed)
    return [line for question, answer in turns for line in (f"user\n{question}", f"assistant\n{answer}")]


def _row(problem: Problem, question: str, split: str, index: int) -> dict[str, Any]:
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(problem.gold)},
        "extra_info": {"split": split, "index": index, "question": question, "answer": problem.worked},
    }


def _endless(items: list[Problem], rng: random.Random) -> Iterator[Problem]:
    """The items again and again, each pass in a new order, so that all are seen equally often."""
    while True:
        yield from rng.sample(items, len(items))


def _rng(purpose: str, seed: int) -> random.Random:
    return random.Random(f"{DATA_SOURCE}/{purpose}/{seed}")
