"""What a run would stop at, or be misled by, in data files: all of it, by file and row."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from verl_core.config.errors import UserError
from verl_core.config.reward_parts import MODEL_PARTS, TASK, reward_parts
from verl_core.config.schema import RewardConfig
from verl_core.config.scorers import scorer_of
from verl_core.data.gold_pool import gold_pool
from verl_core.data.inspection.figures import among, repeated
from verl_core.data.inspection.subject import Subject
from verl_core.data.rows import RawRow
from verl_core.rewards.pool import ScoreRequest
from verl_core.rewards.registry import Part
from verl_core.rewards.verdict import UnusableGold


@dataclass(frozen=True)
class Fault:
    """`kind` is broken, template, length, scorer, gold, duplicate or overlap; `row` counts from 1 in the file, and is
    the line in JSON lines."""

    file: str
    row: int
    kind: str
    said: str


def faults_of(subject: Subject) -> Iterator[Fault]:
    """Of the rows of one split."""
    for file, number, said in subject.read.broken:
        yield Fault(file, number, "broken", said)
    if subject.tokenizer is not None and subject.rows:
        yield from _of_lengths(subject)
    if subject.form == "prompts":
        yield from _of_golds(subject.rows, subject.config.reward)
    for row, earlier in repeated(subject.rows):
        yield _at(row, "duplicate", f"says what {earlier.file} row {earlier.row} says")


def overlap(train: Subject, val: Subject) -> Iterator[Fault]:
    """Validation prompts that are trained on."""
    for row, other in among(val.rows, train.rows):
        yield _at(row, "overlap", f"is trained on: {other.file} row {other.row}")


def _of_lengths(subject: Subject) -> Iterator[Fault]:
    data = subject.config.data
    lengths, refused = subject.lengths()
    for row, said in refused:
        yield _at(row, "template", said)
    if data.truncation != "error" or data.filter_overlong_prompts:
        return
    for position, (prompt, answer) in lengths.items():
        row = subject.rows[position]
        if prompt > data.max_prompt_length:
            yield _at(row, "length", f"{prompt} tokens are over data.max_prompt_length={data.max_prompt_length}")
        elif answer > data.max_response_length:
            limit = f"data.max_response_length={data.max_response_length}"
            yield _at(row, "length", f"an answer of {answer} tokens is over {limit}")


def _of_golds(rows: Sequence[RawRow], reward: RewardConfig) -> Iterator[Fault]:
    """The rules of the reward are asked about an empty answer to every row: what they say of the ground truth counts.
    Models that score ask nothing of it."""
    parts = [Part(name, part.keywords) for name, part in reward_parts(reward).items() if name not in MODEL_PARTS]
    if not parts:
        return
    built_in = reward.custom_reward_function.path is None and any(part.name == TASK for part in parts)
    usable = []
    for source, count in Counter(row.data_source for row in rows).items():
        try:
            if built_in:
                scorer_of(source)
            usable.append(source)
        except UserError as error:
            first = next(row for row in rows if row.data_source == source)
            yield _at(first, "scorer", f"{error.message} ({count} rows): {error.hint}")
    scored = [row for row in rows if row.data_source in usable]
    with gold_pool(reward, parts) as pool:
        try:
            pool.check(usable)
        except UserError as error:
            if scored:
                yield _at(scored[0], "scorer", error.message)
            return
        verdicts = asyncio.run(
            pool.score_parts([ScoreRequest(r.data_source, "", r.ground_truth, r.extra_info) for r in scored])
        )
    failed: dict[tuple[str, str], list[RawRow]] = defaultdict(list)
    for row, own in zip(scored, verdicts, strict=True):
        for part, verdict in zip(parts, own, strict=True):
            rule = row.data_source if part.name == TASK else part.name
            if verdict.error and verdict.error.startswith(UnusableGold.__name__):
                yield _at(row, "gold", f"{rule} cannot score it: {verdict.error}")
            elif verdict.error:
                failed[rule, verdict.error].append(row)
    for (rule, said), failing in failed.items():
        yield _at(failing[0], "scorer", f"{rule} fails on an empty answer: {said} ({len(failing)} rows)")


def _at(row: RawRow, kind: str, said: str) -> Fault:
    return Fault(row.file, row.row, kind, said)
