"""What a data set is read from: the files of one key, or the named sources of a mixture, each with its share."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_core.config.errors import UserError
from verl_core.config.prompt_files import as_list
from verl_core.config.schema import DataConfig, MixtureConfig

Files = str | Sequence[str] | Mapping[str, MixtureConfig]
"""A path, folder, glob or `builtin:NAME`, a list of these, or the sources of data.mixture by name."""


@dataclass(frozen=True, slots=True)
class Source:
    """Files that are read together. `name` is empty for those of data.train_files and data.val_files."""

    name: str
    files: list[str]
    weight: float
    max_samples: int
    key: str
    """That names the files."""
    limit_key: str
    """That sets max_samples."""

    def choose(self, n: int, seed: int, drawn: bool) -> list[int]:
        """Which of its `n` rows max_samples leaves, ascending: a seeded sample when `drawn`, else the first. Raises
        UserError for a max_samples that is no number of rows."""
        limit = self.max_samples
        if limit != -1 and limit < 1:
            raise UserError(
                f"{self.limit_key}={limit} is not a number of rows", hint="use -1 for all rows, or a number from 1"
            )
        if limit == -1 or limit >= n:
            return list(range(n))
        if drawn:
            key = f"rlx/max-samples/{seed}" + (f"/{self.name}" if self.name else "")
            return sorted(random.Random(key).sample(range(n), limit))
        return list(range(limit))


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a source that are used, by their positions in the data set."""

    name: str
    weight: float
    positions: range


def sources_of(files: Files, cfg: DataConfig, split: str) -> list[Source]:
    """The sources that `files` stands for; `split` is "train" or "val"."""
    if isinstance(files, Mapping):
        return [
            Source(name, as_list(own.files), own.weight, own.max_samples, f"{key}.files", f"{key}.max_samples")
            for name, own in files.items()
            for key in [f"data.mixture.{name}"]
        ]
    named = [files] if isinstance(files, str) else list(files)
    limit_key = f"{split}_max_samples"
    return [Source("", named, 1.0, getattr(cfg, limit_key), f"data.{split}_files", f"data.{limit_key}")]
