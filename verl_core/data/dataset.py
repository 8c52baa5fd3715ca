"""Prompts as token ids: read, checked, tokenised by the chat template, cut or filtered to the length that is sent."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NoReturn

from verl_core.config.errors import UserError
from verl_core.config.schema import DataConfig
from verl_core.data.lengths import fit_proof, tokenizer_threads, truncate
from verl_core.data.reading import COLUMNS, Form, Rows, Split, read_rows
from verl_core.data.rows import RawRow, raise_for
from verl_core.data.sources import Files, Part, Source, sources_of

log = logging.getLogger(__name__)

CHUNK = 1024  # prompts tokenised at a time: bounds memory, and is large enough for the tokenizer's own threads
TOLD_EVERY_S = 10  # seconds between two reports of a long measurement


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt ready to be sent. `ids` end with the template's generation prompt; `index` is the row's place among
    all rows read; `uid` names this use of it: `<epoch>-<index>`, after `<source>/` in a mixture."""

    uid: str
    index: int
    prompt: list[dict[str, Any]]
    ids: tuple[int, ...]
    data_source: str
    ground_truth: Any
    extra_info: dict[str, Any]
    file: str


class PromptDataset:
    """The prompts of one split, in file order.

    files: path, folder, glob, list of these, `builtin:NAME` (see `files.resolve`), or the sources of a mixture, whose
    rows follow one another.
    Length is that of exactly the ids that will be sent. When the configuration has to look at all of them
    (`filter_overlong_prompts`, or truncation "error"), all are rendered at loading, and those are tokenised that are
    not short by `lengths.fit_proof`; the others when first taken.
    Raises UserError for unreadable files, broken rows, prompts that are too long, and an empty split.
    """

    what = "prompts"
    """What its rows are called in messages."""
    form: Form = "prompts"

    def __init__(
        self, files: Files, cfg: DataConfig, tokenizer: Any, split: Split, seed: int, read: Rows | None = None
    ):
        """`read`: what `read_rows` gave for these files, whose broken rows are left out instead of refused, as is a
        source without rows."""
        self.cfg, self.tokenizer, self.split = cfg, tokenizer, split
        check_template(tokenizer)
        self._fits = fit_proof(tokenizer)
        self._sources = sources_of(files, cfg, split)
        if not (lenient := read is not None):
            read = read_rows(self._sources, self.form, cfg, split, seed)
            raise_for(read.broken, "broken rows", hint=f"the columns are {COLUMNS[self.form]}; see docs/data.md")
        self._raw, self._begins, self._difficulty = read.rows, read.begins, read.difficulty
        self._ids: dict[int, array[int]] = {}
        self.indexes = self._choose(seed)
        self.removed = 0
        """Rows dropped by filter_overlong_prompts."""
        if cfg.filter_overlong_prompts:
            self._filter_overlong()
        elif cfg.truncation == "error":
            self._refuse_overlong()
        for part, source in zip(self.parts, self._sources, strict=True):
            if not (part.positions or lenient):
                self._refuse_empty(source)

    def __len__(self) -> int:
        return len(self.indexes)

    def __getitem__(self, position: int) -> PromptRow:
        return self.take([position])[0]

    def take(self, positions: Iterable[int], epochs: Iterable[int] | None = None) -> list[PromptRow]:
        """The rows at these positions (0 <= position < len), each with the epoch of its uid; all of epoch 0 without."""
        wanted = [self.indexes[p] for p in positions]
        self._encode(wanted)
        return [self._row(i, epoch) for i, epoch in zip(wanted, epochs or [0] * len(wanted), strict=True)]

    def lengths(self, positions: Sequence[int]) -> list[tuple[int, int]]:
        """Tokens of each row's prompt before it is cut, and of its longest answer, 0 where it has none."""
        wanted = [self.indexes[p] for p in positions]
        self._encode(wanted)
        return [self._lengths(i) for i in wanted]

    def raw(self, position: int) -> RawRow:
        """The row at a position, before it is tokenised."""
        return self._raw[self.indexes[position]]

    def difficulty(self, position: int) -> float:
        """The number that data.curriculum.by names, of the row at a position."""
        return self._difficulty[self.indexes[position]]

    def position_of(self, uid: str) -> int:
        """Where the row lies that a uid names."""
        return bisect_left(self.indexes, int(uid.rpartition("-")[2]))

    @property
    def parts(self) -> list[Part]:
        """The sources' rows that are used, in the sources' order."""
        cuts = [bisect_left(self.indexes, begin) for begin in (*self._begins, len(self._raw))]
        return [
            Part(source.name, source.weight, range(*cut))
            for source, cut in zip(self._sources, pairwise(cuts), strict=True)
        ]

    @property
    def data_sources(self) -> set[str]:
        """The data sources of all rows that are used: each needs a reward."""
        return {self._raw[i].data_source for i in self.indexes}

    def content_hash(self) -> str:
        """SHA-256 over every row that is used and its place: equal hashes mean the same stream of prompts."""
        return self._hash

    @cached_property
    def _hash(self) -> str:
        digest = hashlib.sha256()
        for i in self.indexes:
            content = [i, *self._content(self._raw[i]), *self._difficulty[i : i + 1]]
            digest.update(json.dumps(content, sort_keys=True, default=repr).encode())
        return digest.hexdigest()

    # --- what a data set of another form has of its own --------------------------------------------------------------

    def _content(self, r: RawRow) -> list[Any]:
        return [r.messages, r.data_source, r.ground_truth, r.extra_info]

    @property
    def _limits(self) -> str:
        return f"data.max_prompt_length={self.cfg.max_prompt_length}"

    def _too_long(self, index: int) -> tuple[str, str] | None:
        """Of a measured row that is longer than it may be, the key that bounds it, and what is too long."""
        tokens = len(self._ids.get(index, ()))
        return ("data.max_prompt_length", f"{tokens} tokens") if tokens > self.cfg.max_prompt_length else None

    def _lengths(self, index: int) -> tuple[int, int]:
        return len(self._ids[index]), 0

    def _encode(self, indexes: Sequence[int]) -> None:
        missing = [i for i in dict.fromkeys(indexes) if i not in self._ids]
        for start in range(0, len(missing), CHUNK):
            self._encode_chunk(missing[start : start + CHUNK])

    def _encode_chunk(self, chunk: Sequence[int]) -> None:
        self._tokenise(dict(zip(chunk, self._render(chunk), strict=True)))

    def _measure_chunk(self, chunk: Sequence[int]) -> None:
        """Encodes what may be too long: what is left out is short."""
        texts = dict(zip(chunk, self._render(chunk), strict=True))
        if self._fits is not None:
            texts = {i: text for i, text in texts.items() if not self._fits(text, self.cfg.max_prompt_length)}
        self._tokenise(texts)

    # ----------------------------------------------------------------------------------------------------------------

    def _choose(self, seed: int) -> list[int]:
        """The rows that max_samples leaves, in file order."""
        drawn = self.split == "train" and self.cfg.shuffle
        ends = [*self._begins[1:], len(self._raw)]
        return [
            begin + i
            for source, begin, end in zip(self._sources, self._begins, ends, strict=True)
            for i in source.choose(end - begin, seed, drawn)
        ]

    def _row(self, index: int, epoch: int) -> PromptRow:
        r = self._raw[index]
        ids = tuple(truncate(self._ids[index], self.cfg.max_prompt_length, self.cfg.truncation))
        source = self._sources[bisect_right(self._begins, index) - 1].name
        uid = f"{source}/{epoch}-{index}" if source else f"{epoch}-{index}"
        return PromptRow(uid, index, r.messages, ids, r.data_source, r.ground_truth, r.extra_info, r.file)

    def _tokenise(self, texts: dict[int, str]) -> None:
        if texts:
            with tokenizer_threads():
                encoded = self.tokenizer(list(texts.values()), add_special_tokens=False)["input_ids"]
            self._ids.update((i, array("i", ids)) for i, ids in zip(texts, encoded, strict=True))

    def _measure(self) -> None:
        """After it, `_too_long` knows of every row that is used."""
        began = told = time.monotonic()
        for start in range(0, len(self.indexes), CHUNK):
            if (now := time.monotonic()) - told > TOLD_EVERY_S:
                rate = start / (now - began)
                log.info("%s: %d of %d %s measured, %.0f/s", self.split, start, len(self.indexes), self.what, rate)
                told = now
            self._measure_chunk(self.indexes[start : start + CHUNK])

    def _filter_overlong(self) -> None:
        self._measure()
        kept = [i for i in self.indexes if not self._too_long(i)]
        self.removed = len(self.indexes) - len(kept)
        self.indexes = kept
        if self.removed:
            log.info(
                "%s: %d %s longer than %s removed, %d kept",
                self.split,
                self.removed,
                self.what,
                self._limits,
                len(kept),
            )

    def _refuse_overlong(self) -> None:
        self._measure()
        found = [(self._raw[i], *long) for i in self.indexes if (long := self._too_long(i))]
        keys = " and ".join(dict.fromkeys(key for _, key, _ in found))
        raise_for(
            ((row.file, row.row, said) for row, _, said in found),
            what=f"{self.what} longer than {self._limits}",
            hint=f"raise {keys}, or set data.filter_overlong_prompts=true or data.truncation=left",
        )

    def _refuse_empty(self, source: Source) -> NoReturn:
        said = f"no {self.split} {self.what} in {', '.join(source.files)}"
        if self.removed:
            said += f": all {self.removed} {self.what} are longer than {self._limits}"
            raise UserError(
                said, hint="raise the limit, or set data.filter_overlong_prompts=false and data.truncation=left"
            )
        raise UserError(said, hint=f"the files have no rows: see {source.key}")

    def _render(self, indexes: Sequence[int]) -> list[str]:
        try:
            return self._apply_template([self._raw[i].messages for i in indexes])
        except Exception as e:  # a template is a program of its own: it raises what it likes
            if len(indexes) == 1:
                r = self._raw[indexes[0]]
                raise UserError(
                    f"{r.file} row {r.row}: the chat template refuses the prompt: {e}",
                    hint="change the row's messages, data.apply_chat_template_kwargs or model.custom_chat_template",
                ) from e
        return [text for i in indexes for text in self._render([i])]

    def _apply_template(self, conversations: list[list[dict[str, Any]]]) -> list[str]:
        return self.tokenizer.apply_chat_template(
            conversations, add_generation_prompt=True, tokenize=False, **self.cfg.apply_chat_template_kwargs
        )


def check_template(tokenizer: Any) -> None:
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            f"tokenizer {getattr(tokenizer, 'name_or_path', '')!r} has no chat template",
            hint="use an instruct model, or set model.custom_chat_template",
        )
