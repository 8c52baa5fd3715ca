"""Byte code of a new environment: linked from one that has it, so that a switch of engines costs no compilation.

uv installs a package into every environment as hard links to one file in its cache. A `.pyc` that Python compiled from
such a file in one environment is therefore valid in all: its header holds the source's time and size. What no
environment has is compiled by Python itself when it is first imported.
"""

import errno
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import NamedTuple

SUFFIX = f".{sys.implementation.cache_tag}.pyc"
HEADER = 16  # bytes: magic number, flags, time and size of the source
TIME_AND_SIZE = bytes(4)  # flags of byte code that is checked against its source's time and size
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


class Counts(NamedTuple):
    linked: int
    missing: int


def packages_folder(environment: Path) -> Path:
    """Where an environment of the interpreter that runs rlx keeps its packages."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def link(environment: Path, others: Iterable[Path]) -> Counts:
    """Give each source file of the environment the byte code that another environment has for it; copy where the file
    systems differ. About 1 s for 35 000 files."""
    top = str(packages_folder(environment))
    compiled = [str(packages_folder(other)) for other in others]
    linked = missing = 0
    for folder, sources in _sources(top):
        cache = f"{folder}/__pycache__"
        places = [place for other in compiled if os.path.isdir(place := other + cache[len(top) :])]  # noqa: PTH112
        for source in sources:
            name = source.name[: -len(".py")] + SUFFIX
            if any(_take(f"{place}/{name}", cache, name, source) for place in places):
                linked += 1
            else:
                missing += 1
    return Counts(linked, missing)


def _sources(top: str) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Every folder with Python files in it, and those files."""
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        with os.scandir(folder) as entries:
            listed = list(entries)
        waiting += [e.path for e in listed if e.name != "__pycache__" and e.is_dir(follow_symlinks=False)]
        if sources := [entry for entry in listed if entry.name.endswith(".py") and entry.is_file()]:
            yield folder, sources


def _take(have: str, cache: str, name: str, source: os.DirEntry[str]) -> bool:
    """Link `have` into the folder `cache` if it is the byte code of the source; False if it is not."""
    try:
        with open(have, "rb", buffering=0) as file:  # noqa: PTH123
            header = file.read(HEADER)
    except OSError:
        return False
    if header != _header(source.stat()):
        return False
    try:
        _link_or_copy(have, f"{cache}/{name}")
    except FileNotFoundError:
        os.mkdir(cache)  # noqa: PTH102
        _link_or_copy(have, f"{cache}/{name}")
    return True


def _link_or_copy(have: str, wanted: str) -> None:
    try:
        os.link(have, wanted)
    except FileExistsError:
        pass
    except OSError as problem:
        if problem.errno not in NO_LINKS:
            raise
        shutil.copyfile(have, wanted)


def _header(source: os.stat_result) -> bytes:
    """The first bytes of valid byte code, as `importlib` checks them."""
    numbers = (int(source.st_mtime), source.st_size)
    return MAGIC_NUMBER + TIME_AND_SIZE + b"".join((n & 0xFFFFFFFF).to_bytes(4, "little") for n in numbers)
