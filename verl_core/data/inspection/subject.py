"""The rows of some files, read as a run reads them, and their lengths where the tokenizer is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import batched
from typing import Any

from verl_core.config.catalogue import entry
from verl_core.config.errors import UserError
from verl_core.config.schema import MixtureConfig, RlxConfig
from verl_core.data.builtin import builtin_corpus, is_builtin
from verl_core.data.dataset import CHUNK, PromptDataset
from verl_core.data.examples import ExampleDataset, form_of
from verl_core.data.reading import Form, Rows, Split, read_rows, records
from verl_core.data.rows import RawRow
from verl_core.data.sources import Files, sources_of

Lengths = dict[int, tuple[int, int]]
"""Position of a row: tokens of its prompt, and of its longest answer."""


@dataclass
class Subject:
    """All rows of `files`, whatever data.train_max_samples and the length limits leave of them. `tokenizer` is None
    where no model is named. Raises UserError for files that cannot be read."""

    files: Files
    split: Split
    config: RlxConfig
    tokenizer: Any
    form: Form
    read: Rows = field(init=False)

    def __post_init__(self) -> None:
        self.files = _whole(self.files)
        data, seed = self.config.data, self.config.trainer.seed
        self.read = read_rows(sources_of(self.files, self._data, self.split), self.form, data, self.split, seed)

    @property
    def rows(self) -> list[RawRow]:
        return self.read.rows

    @cached_property
    def dataset(self) -> PromptDataset:
        """The rows with their ids. Raises UserError for a tokenizer without a template."""
        seed = self.config.trainer.seed
        if self.form == "prompts":
            return PromptDataset(self.files, self._data, self.tokenizer, self.split, seed, self.read)
        return ExampleDataset(self.files, self._data, self.tokenizer, self.split, seed, self.form, self.read)

    def lengths(self) -> tuple[Lengths, list[tuple[RawRow, str]]]:
        """Of every row that the chat template renders; and of the others, what it says."""
        found: Lengths = {}
        refused: list[tuple[RawRow, str]] = []
        for chunk in batched(range(len(self.rows)), CHUNK):
            try:
                found.update(zip(chunk, self.dataset.lengths(chunk), strict=True))
            except UserError:
                refused += self._one_by_one(chunk, found)
        return found, refused

    def _one_by_one(self, chunk: tuple[int, ...], found: Lengths) -> Iterator[tuple[RawRow, str]]:
        for position in chunk:
            try:
                found[position] = self.dataset.lengths([position])[0]
            except UserError as error:
                yield self.rows[position], error.message

    @property
    def _data(self) -> Any:
        """Nothing left out and nothing refused for its length; a cut that the configuration asks for stays."""
        data = self.config.data
        cut = "left" if data.truncation == "error" else data.truncation
        return replace(data, train_max_samples=-1, val_max_samples=-1, filter_overlong_prompts=False, truncation=cut)


def form_in(files: Files, split: Split, config: RlxConfig) -> Form:
    """The form that the first row's columns show, where no algorithm says what is read."""
    for source in sources_of(files, config.data, split):
        for _, _, record in records(source, "prompts", split, config.trainer.seed):
            given = record if isinstance(record, dict) else {}
            columns = {name for name, value in given.items() if value is not None}
            if "reward_model" in columns:
                return "prompts"
            if {"chosen", "rejected"} <= columns:
                return "pairs"
            if {"completion", "label"} <= columns:
                return "labels"
            return "demonstrations" if config.data.messages_key in columns else "prompts"
    return "prompts"


def form_of_algorithm(config: RlxConfig) -> Form:
    """What the configuration's algorithm reads."""
    needs = entry("algorithm", config.algorithm.name).needs
    return form_of(needs) if "dataset" in needs else "prompts"


def tokenizer_of(config: RlxConfig) -> Any:
    """The tokenizer of model.path, also of a builtin model that no run has made yet."""
    if is_builtin(config.model.path) and config.model.tokenizer_path is None:
        from verl_core.models.builtin import build_tokenizer

        return build_tokenizer(builtin_corpus(config.model.path, config.trainer.seed))
    from verl_core.models.tokenizer import load_tokenizer

    return load_tokenizer(config.model)


def _whole(files: Files) -> Files:
    """The sources of a mixture with all of their rows."""
    if isinstance(files, dict):
        return {name: MixtureConfig(source.files, source.weight) for name, source in files.items()}
    return files
