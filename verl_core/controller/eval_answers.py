"""The file of an evaluation's answers (--out): one JSON object an answer, written as the answers come, so that a second
call goes on where a killed one ended.

Every line carries the digests of what its answer depends on (`eval`). A call takes over the lines that it would have
written itself, adds what is missing, and refuses a file that holds anything else.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from itertools import batched, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from verl_core.config.errors import RunError, UserError
from verl_core.config.process import NO_SPACE
from verl_core.controller.scores import Answer
from verl_core.controller.seeds import draw_seed
from verl_core.tracking.files import plain, read_jsonl, write_atomic

if TYPE_CHECKING:  # whether the file can be written is known before torch is loaded
    from verl_core.batch import Trajectory
    from verl_core.controller.eval_source import Candidate
    from verl_core.data.dataset import PromptRow

Row = dict[str, Any]

OTHER_FILE = "name another file, or move this one away"
_SAME_NAME = ("question", "data_source", "sample", "reward", "acc", "pred", "tokens", "finish")
ANSWER_FIELDS = {*_SAME_NAME, "answer", "score_error"}


def row_of(t: Trajectory, prompt: PromptRow, candidate: Candidate, seed: int) -> Row:
    """The line of one answer; `seed` is the evaluation's."""
    return {
        "source": candidate.label,
        "question": t.group,
        "prompt": plain(prompt.prompt),
        "sample": t.sample,
        "seed": draw_seed(seed, "validation", 0, t.group, t.sample),
        "tokens": sum(t.mask),
        "reward": t.reward,
        "reward_parts": t.reward_parts,
        "finish": t.finish,
        **plain(t.meta),
        "eval": candidate.depends,
    }


def answer_in(row: Row) -> Answer:
    """What counts of a line."""
    return Answer(**{name: row[name] for name in _SAME_NAME}, text=row["answer"], error=row["score_error"])


class AnswerFile:
    """`path` is held until `close`, which removes it when it is new and nothing came. A device is only written to.

    Raises UserError when it cannot be written, or another evaluation is writing it; RunError when the disk is full.
    """

    def __init__(self, path: Path):
        self.path = path
        self._new = not path.exists()
        self._hold()

    def resume(self, candidates: Sequence[Candidate]) -> list[list[list[Row]]]:
        """The groups of each candidate that are there already, in the order of its prompts: whole chunks, so that what
        follows is generated in the same company as without an interruption. All other lines leave the file.

        Raises UserError when the file holds other things than these candidates' answers.
        """
        if not self.path.is_file():
            return [[] for _ in candidates]
        rows = list(read_jsonl(self.path))
        for number, row in enumerate(rows, 1):
            self._require_ours(number, row, candidates)
        kept = [_whole_chunks([r for r in rows if r["eval"] == c.depends], c) for c in candidates]
        own = [row for groups in kept for group in groups for row in group]
        if len(own) < len(rows) or not self._ends_well():
            self._replace(own)
        return kept

    def add(self, groups: Iterable[Iterable[Row]]) -> None:
        """Appends answers; when this returns they survive the end of the process."""
        left = memoryview("".join(_line(row) for group in groups for row in group).encode())
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._fault(error) from error

    def close(self) -> None:
        if self._new and self.path.is_file() and self.path.stat().st_size == 0:
            self.path.unlink()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _hold(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise UserError(f"--out {self.path} cannot be written: {error.strerror}", "name another file") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UserError(f"another evaluation is writing {self.path}", "wait for it, or name another file") from None
        except OSError:  # no such locks here
            pass

    def _require_ours(self, number: int, row: Row, candidates: Sequence[Candidate]) -> None:
        found = row.get("eval")
        if not isinstance(found, dict) or ANSWER_FIELDS - row.keys():
            raise UserError(f"--out {self.path}: line {number} is no answer of `rlx eval`", OTHER_FILE)
        candidate = next((c for c in candidates if c.depends["model"] == found.get("model")), None)
        if candidate is None:
            named = " and ".join(c.label for c in candidates)
            raise UserError(
                f"--out {self.path} holds answers of {row.get('source')}, which is not {named} as it is now", OTHER_FILE
            )
        if other := [name for name, digest in candidate.depends.items() if found.get(name) != digest]:
            raise UserError(
                f"--out {self.path} holds answers of {candidate.label} made with other {' and '.join(other)}",
                OTHER_FILE,
            )

    def _ends_well(self) -> bool:
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            return file.read() in (b"", b"\n")

    def _replace(self, rows: Sequence[Row]) -> None:
        try:
            write_atomic(self.path, "".join(map(_line, rows)))
        except OSError as error:
            raise self._fault(error) from error
        self._file.close()
        self._hold()

    def _fault(self, error: OSError) -> Exception:
        goes_on = "the same command goes on after what is written"
        if error.errno in (*NO_SPACE, errno.EFBIG):
            return RunError(f"no space left for {self.path}: {error.strerror}", f"free some space; {goes_on}")
        return RunError(f"{self.path} cannot be written any more: {error.strerror}", goes_on)


def _whole_chunks(own: Sequence[Row], candidate: Candidate) -> list[list[Row]]:
    """The groups at the beginning of a candidate's lines that are as it would write them, as far as whole chunks."""
    n, prompts = candidate.n, candidate.prompts
    wanted = ((prompt.uid, k) for prompt in prompts for k in range(n))
    pairs = zip(own, wanted, strict=False)
    whole = sum(1 for _ in takewhile(lambda pair: (pair[0]["question"], pair[0]["sample"]) == pair[1], pairs)) // n
    if whole < len(prompts):
        whole -= whole % candidate.chunk
    return [list(group) for group in batched(own[: whole * n], n)]


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
