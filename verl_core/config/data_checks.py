"""What a mixture of sources and a curriculum ask of their keys."""

import re
from collections.abc import Iterator

from verl_core.config.files import path_fault
from verl_core.config.key_checks import Said
from verl_core.config.prompt_files import as_list
from verl_core.config.schema import RlxConfig

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def data_faults(said: Said, e: RlxConfig) -> Iterator[str]:
    """Of an effective configuration."""
    for name, source in e.data.mixture.items():
        key = f"data.mixture.{name}"
        if not _NAME.fullmatch(name):
            yield f"{key}: a source is named by letters, digits, - and _, because its name begins its prompts' ids"
            continue
        if not source.files or "" in as_list(source.files):
            yield f"{key}.files names no prompts: set it to a path, a list of paths, a folder, a glob or builtin:NAME"
        for path in as_list(source.files):
            if fault := path_fault(path):
                yield f"{key}.files={path}: {fault}"
