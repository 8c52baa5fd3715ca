"""Data sets that are made up: distinct problems by seed, those of one split never in another."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from random import Random
from typing import Protocol

from verl_core.config.errors import UserError
from verl_core.config.generated_data import GeneratedOptions, changed
from verl_core.data.prepare.prepared import Prepared, Row, Wanted

PATIENCE = 5_000  # draws in a row that give nothing new, after which there is taken to be no more
TOLD_EVERY = 500  # problems between two reports of progress


class Problem(Protocol):
    """One problem: problems with equal keys are the same to a solver."""

    @property
    def key(self) -> Hashable: ...


def generated[P: Problem](
    wanted: Wanted, draws: Callable[[Random], Iterable[P | None]], row_of: Callable[[P, str, int], Row]
) -> Prepared:
    """`test_count` and `count` problems of `wanted.options`, at most `wanted.limit` of each.

    draws: problems without end, with None for a draw that gave none. row_of: (problem, split, index) -> row. The test
    problems are drawn first, so that more for training leave them as they are. Raises UserError when too few different
    ones come.
    """
    options: GeneratedOptions = wanted.options
    rows: dict[str, list[Row]] = {}
    seen: set[Hashable] = set()
    for split, count in (("test", options.test_count), ("train", options.count)):
        drawn = iter(draws(Random(f"{options.seed} {split}")))
        problems: list[P] = []
        while len(problems) < count:
            problems.append(_new(drawn, seen, len(problems), count, split))
            if len(seen) % TOLD_EVERY == 0:
                wanted.progress(len(seen), options.count + options.test_count)
        rows[split] = [row_of(problem, split, i) for i, problem in enumerate(problems[: wanted.limit])]
    return Prepared({split: rows[split] for split in ("train", "test")}, f"made with seed {options.seed}")


def refuse_changed(wanted: Wanted) -> None:
    """Raises UserError for options that speak of making problems, given together with a source to read them from."""
    if given := changed(wanted.options):
        raise UserError(
            f"{', '.join(given)} is for problems that are made, and --source {wanted.source} has them already",
            hint="leave --source out, or these",
        )


def _new[P: Problem](drawn: Iterator[P | None], seen: set[Hashable], found: int, count: int, split: str) -> P:
    for problem in islice(drawn, PATIENCE):
        if problem is not None and problem.key not in seen:
            seen.add(problem.key)
            return problem
    raise UserError(
        f"these options give too few different problems: {found} of {count} for {split}",
        hint="ask for fewer (--count, --test-count), or allow more kinds of them",
    )
