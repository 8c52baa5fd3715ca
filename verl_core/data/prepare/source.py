"""Where a published data set's rows are: in a local folder or file, or on the Hugging Face hub, which is fetched into a
folder of the same layout. So both are read by the same lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_core.config.errors import UserError
from verl_core.data.files import SUFFIXES, read_records
from verl_core.data.prepare.hub import fetch
from verl_core.data.prepare.prepared import SourceFile, Wanted


@dataclass(frozen=True)
class Layout:
    """How a data set lies on the hub.

    splits: ours ("train", "test") -> the hub's name of it. config: the hub's folder of one variant. files: names of
    files that hold all splits, as projects on GitHub publish them. columns: what a row has, for messages.
    """

    hub: str
    splits: Mapping[str, str]
    columns: str
    config: str = "data"
    files: tuple[str, ...] = field(default=())

    def patterns(self, split: str) -> list[str]:
        """Where the split's files may lie below a folder; the first pattern that some file fits is taken."""
        name = self.splits[split]
        plain = [f"{name}{suffix}" for suffix in SUFFIXES]
        sharded = [f"{folder}{name}-*.parquet" for folder in (f"{self.config}/", "default/", "")]
        converted = [f"{folder}/{name}/*.parquet" for folder in (self.config, "default")]  # the hub's own conversion
        return [*plain, *self.files, *sharded, *converted]

    @property
    def takes_a_file(self) -> bool:
        """Whether one file is the whole data set."""
        return len(self.splits) == 1 or bool(self.files)


@dataclass(frozen=True)
class Source:
    """The files of each split, and what is said of their origin in the manifest."""

    origin: str
    root: Path
    files: Mapping[str, list[Path]]

    def records(self, split: str) -> Iterator[tuple[str, int, Any]]:
        """(file, row number from 1, record or the ValueError that stands for a broken line)."""
        return ((str(file), number, record) for file in self.files[split] for number, record in read_records(file))

    def hashed(self) -> tuple[SourceFile, ...]:
        """Every file once. Raises UserError for one that cannot be read."""
        every = sorted({file for files in self.files.values() for file in files})
        return tuple(hashed(file, str(file.relative_to(self.root))) for file in every)


def find(wanted: Wanted, layout: Layout) -> Source:
    """The files that `--source` or the hub has. Raises UserError for a split without files, with all that was looked
    for, and for a hub that cannot be reached."""
    if wanted.source is None:
        every = [pattern for split in layout.splits for pattern in layout.patterns(split)]
        folder = fetch(layout.hub, every, wanted.name)
        return Source(f"hub:{layout.hub}@{folder.name}", folder, _in_folder(folder, layout, layout.hub))
    source = wanted.source
    if source.is_file():
        if not layout.takes_a_file:
            raise UserError(
                f"--source {source} is one file, and {wanted.name} has the splits {' and '.join(layout.splits)}",
                hint=f"give the folder with {' and '.join(f'{name}.jsonl' for name in layout.splits.values())}",
            )
        return Source(str(source), source.parent, {split: [source] for split in layout.splits})
    return Source(str(source), source, _in_folder(source, layout, str(source)))


def hashed(file: Path, name: str) -> SourceFile:
    """Size and SHA-256 of a file, called `name` in the manifest. Raises UserError when it cannot be read."""
    try:
        with file.open("rb") as f:
            digest = hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise UserError(f"{file} cannot be read: {e.strerror or e}", hint="check its owner and its rights") from e
    return SourceFile(name, file.stat().st_size, digest)


def _in_folder(folder: Path, layout: Layout, called: str) -> dict[str, list[Path]]:
    files = {}
    for split in layout.splits:
        fitting = (sorted(folder.glob(pattern)) for pattern in layout.patterns(split))
        files[split] = next(filter(None, fitting), [])
        if not files[split]:
            raise UserError(
                f"{called} has no {split} file: none of {', '.join(layout.patterns(split))}",
                hint=f"its rows are {{{layout.columns}}}; the layout of {layout.hub} on the hub fits as it is",
            )
    return files
