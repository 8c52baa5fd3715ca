"""`rlx prepare --validate`: reads what was written as a run would, and asks every row's rule about its own gold."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import batched
from pathlib import Path
from typing import Any

from verl_core.config.errors import UserError
from verl_core.config.schema import DataConfig, RewardConfig
from verl_core.config.scorers import scorer_of
from verl_core.data.example_rows import comparison, demonstration
from verl_core.data.files import read_records
from verl_core.data.gold_pool import gold_pool
from verl_core.data.prepare.manifest import Manifest
from verl_core.data.prepare.source import hashed
from verl_core.data.rows import SHOWN, BrokenRow, RawRow, as_object, parse_row
from verl_core.rewards.pool import ScoreRequest, ScorerPool, Verdict

CHUNK = 1024  # rows that are scored at a time
FULL_MARKS = 1.0


@dataclass
class Outcome:
    """How many rows passed which check, and what is wrong: a line each, the first of each kind of fault."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def validate(manifest: Manifest, folder: Path, checked: Callable[[int], None]) -> Outcome:
    """Every file against its hash, every row as the loader parses it, and every gold by its rule: one that cannot be
    compared with anything is a fault, and so is a worked answer (`extra_info.answer`) without full marks.

    Rows that nothing scores (pairs, demonstrations), or whose data source has no built-in rule, are only parsed.
    `checked(n)` is called after n more rows. Raises UserError for a file that cannot be read.
    """
    outcome = Outcome()
    with gold_pool(RewardConfig()) as pool:
        for file in manifest["files"].values():
            _file(folder / Path(file["file"]).name, file, pool, outcome, checked)
    if len(outcome.faults) > SHOWN:
        outcome.faults[SHOWN:] = [f"and {len(outcome.faults) - SHOWN} more"]
    return outcome


def _file(
    path: Path, recorded: dict[str, Any], pool: ScorerPool, outcome: Outcome, checked: Callable[[int], None]
) -> None:
    if not path.is_file():
        raise UserError(f"{path} is not there", hint="prepare it again without --validate")
    if hashed(path, path.name).sha256 != recorded["sha256"]:
        outcome.faults.append(f"{path}: its SHA-256 is not the manifest's; it was changed, or a run was cut short")
    for records in batched(read_records(path), CHUNK):
        rows = list(_parsed(path, records, outcome))
        _score([row for row in rows if _is_scored(row, outcome)], pool, outcome)
        checked(len(records))


def _parsed(path: Path, records: Sequence[tuple[int, Any]], outcome: Outcome) -> Iterator[RawRow]:
    for number, record in records:
        try:
            row = _parse(as_object(record), str(path), number)
        except BrokenRow as e:
            outcome.faults.append(f"{path} row {number}: {e}")
            continue
        outcome.counts["rows parsed"] += 1
        yield row


def _parse(record: dict[str, Any], file: str, number: int) -> RawRow:
    """As the data set of the form that the columns show. Raises BrokenRow."""
    cfg = DataConfig()
    if record.get("reward_model") is not None:
        return parse_row(record, file, number, cfg.prompt_key, cfg.reward_fn_key)
    if record.get(cfg.messages_key) is not None:
        return demonstration(record, file, number, cfg)
    return comparison(record, file, number, cfg)


def _is_scored(row: RawRow, outcome: Outcome) -> bool:
    if row.ground_truth is None:
        return False
    try:
        scorer_of(row.data_source)
    except UserError:
        outcome.counts[f"rows of {row.data_source} without a built-in rule"] += 1
        return False
    return True


def _score(rows: list[RawRow], pool: ScorerPool, outcome: Outcome) -> None:
    requests = [
        ScoreRequest(r.data_source, r.extra_info.get("answer") or "", r.ground_truth, r.extra_info) for r in rows
    ]
    for row, request, verdict in zip(rows, requests, asyncio.run(pool.score(requests)), strict=True):
        place = f"{row.file} row {row.row}"
        if verdict.error:
            outcome.faults.append(f"{place}: {row.data_source} cannot score it: {verdict.error}")
        elif request.solution and _marks(verdict) != FULL_MARKS:
            outcome.faults.append(
                f"{place}: its own answer gets {_marks(verdict)}: {verdict.reason or 'no reason given'}"
            )
        else:
            outcome.counts["golds usable"] += 1
            outcome.counts["worked answers right"] += bool(request.solution)


def _marks(verdict: Verdict) -> float:
    return verdict.reward if verdict.acc is None else verdict.acc
