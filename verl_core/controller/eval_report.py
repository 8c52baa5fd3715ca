"""How an evaluation is shown: progress on stderr, measures as a table on stdout, one column a data source."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

from rich.console import Console
from rich.progress import Progress as Bar

from verl_core.controller.eval_statistics import OVERALL

talk = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

QUIET_S = 5.0  # between two lines of progress where stderr is no terminal

Measures = Mapping[str, Any]
Table = Mapping[str, Measures]
Show = Callable[[Measures], str]


class Progress:
    """Questions answered of `total`: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, label: str, total: int, done: int):
        self.label, self.total, self.done = label, total, done
        self._first, self._tokens = done, 0
        self._began = self._said = time.monotonic()
        self._bar = Bar(console=talk, transient=True, disable=not talk.is_terminal)
        self._task = self._bar.add_task(label, total=total, completed=done)

    def advance(self, questions: int, tokens: int) -> None:
        """`questions` more are answered, with `tokens` in all."""
        self.done += questions
        self._tokens += tokens
        self._bar.update(self._task, completed=self.done)
        now = time.monotonic()
        if not talk.is_terminal and (self.done == self.total or now - self._said >= QUIET_S):
            self._said = now
            talk.print(self._line(now - self._began))

    def _line(self, seconds: float) -> str:
        left = seconds / (self.done - self._first) * (self.total - self.done)
        rest = f", {left:,.0f} s left" if self.done < self.total else f" in {seconds:,.1f} s"
        return f"{self.label}: {self.done} of {self.total} questions, {self._tokens / seconds:,.0f} tokens/s{rest}"

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()


def print_statistics(label: str, table: Table) -> None:
    """The measures of one source."""
    n, ks = table[OVERALL]["n"], list(table[OVERALL]["best"])
    rows: dict[str, Show] = {
        "questions": lambda m: str(m["questions"]),
        f"mean@{n}": lambda m: _number(m["mean"]),
        "95 % interval": lambda m: _interval(m["ci95"]),
        "std over questions": lambda m: _number(m["std"]),
        "accuracy": lambda m: _number(m["acc"]),
    }
    if n > 1:
        rows |= {f"best@{k}": partial(_at, "best", k) for k in ks if k != "1"}  # best@1 is the mean
        rows |= {f"pass@{k}": partial(_at, "pass", k) for k in ks}
        rows[f"maj@{n}"] = lambda m: _number(m["maj"])
    rows |= {
        "tokens an answer": lambda m: f"{m['length']:.1f}",
        "truncated": lambda m: _number(m["truncated"]),
        "scorer failed": lambda m: _number(m["failed"]),
    }
    _print(label, table, rows)


def print_differences(of: str, to: str, table: Table) -> None:
    """`of` minus `to`, question by question."""
    rows: dict[str, Show] = {
        "questions": lambda m: str(m["questions"]),
        "difference of means": lambda m: _number(m["mean"], "+.4f"),
        "95 % interval": lambda m: _interval(m["ci95"], "+.4f"),
        "better, worse, same": lambda m: f"{m['better']}, {m['worse']}, {m['same']}",
    }
    _print(f"{of} minus {to}", table, rows)


def _print(title: str, table: Table, rows: Mapping[str, Show]) -> None:
    """One line a measure; a measure that no column has is left out, and so is the overall column of one data source."""
    shown = {name: own for name, own in table.items() if name != OVERALL or len(table) > 2}
    cells = {name: [value(own) for own in shown.values()] for name, value in rows.items()}
    lines = [("", list(shown)), *((name, own) for name, own in cells.items() if any(cell != "-" for cell in own))]
    first = max(len(name) for name, _ in lines)
    widths = [max(len(own[i]) for _, own in lines) for i in range(len(shown))]
    print(title)
    for name, own in lines:
        print("  ".join([name.ljust(first), *(cell.rjust(w) for cell, w in zip(own, widths, strict=True))]).rstrip())


def _at(measure: str, k: str, m: Measures) -> str:
    return _number(m[measure] and m[measure][k])


def _number(value: float | None, form: str = ".4f") -> str:
    return "-" if value is None else format(value, form)


def _interval(ends: list[float] | None, form: str = ".4f") -> str:
    return "-" if ends is None else f"{ends[0]:{form}} to {ends[1]:{form}}"
