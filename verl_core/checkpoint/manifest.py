"""The manifest of one checkpoint: what belongs to it, how large each piece is, and its checksum. It is written last, so
a folder without it is no checkpoint."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath

from verl_core.checkpoint.folders import Folder, read_blocks
from verl_core.checkpoint.objects import ObjectPath
from verl_core.checkpoint.pieces import DIGEST, Piece
from verl_core.checkpoint.side_by_side import side_by_side

MANIFEST = "manifest.json"
FORMAT = 1
_OF_SHARDS = re.compile(r"[^/]+/(weights|optimizer)/[^/]+\.safetensors")  # of a role, see `load_role`
_THREADS = 4


@dataclass(frozen=True)
class Score:
    """What the metric by which the best checkpoint is kept was at the step of this one."""

    metric: str
    value: float


@dataclass(frozen=True)
class Manifest:
    """`serial` counts the checkpoints of a run in the order they were written, which is not always that of the steps.
    `roles` maps a role to the number of ranks that wrote it; `files` maps a path inside the folder to its piece."""

    step: int
    serial: int
    roles: dict[str, int]
    versions: dict[str, str]
    files: dict[str, Piece]
    score: Score | None = None
    format: int = FORMAT

    @property
    def total_bytes(self) -> int:
        return sum(piece.bytes for piece in self.files.values())

    def below(self, parts: tuple[str, ...]) -> list[tuple[str, Piece]]:
        """The pieces whose path begins with one of `parts`."""
        return [(name, piece) for name, piece in self.files.items() if name.startswith(parts)]


class NoManifest(Exception):
    """The folder has no manifest that this version can read; the text says why."""


def checksum(path: Folder, progress: Callable[[int], None] | None = None) -> str:
    """blake2b-160 of a file, streamed; `progress` is told the size of every block read."""
    digest = hashlib.blake2b(digest_size=DIGEST)
    for block in read_blocks(path):  # hashlib lets other threads run during each
        digest.update(block)
        if progress:
            progress(len(block))
    return digest.hexdigest()


def fsync(path: Path) -> None:
    """Forces a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text_durably(path: Folder, text: str) -> None:
    """Replaces `path` in one step: a reader sees the old text or the new one, also after a crash."""
    if isinstance(path, ObjectPath):
        path.write_text(text)
        return
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        fsync(temporary)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def write_manifest(folder: Folder, step: int, serial: int, score: Score | None = None) -> Manifest:
    """Seals `folder` with a manifest, after every file of it has been forced to the disk and measured. Of objects, that
    are durable and measured when they are written, those that `folder` knows of belong to it."""
    files = folder.written if isinstance(folder, ObjectPath) else _durable_pieces(folder)
    engines = [name for name in files if name.count("/") == 1 and name.endswith("/engine.json")]
    manifest = Manifest(
        step=step,
        serial=serial,
        roles={name.partition("/")[0]: json.loads((folder / name).read_text())["world_size"] for name in engines},
        versions={name: _version(name) for name in ("rlx", "torch", "transformers")},
        files=dict(sorted(files.items())),
        score=score,
    )
    write_text_durably(folder / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")
    return manifest


def _durable_pieces(folder: Path) -> dict[str, Piece]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())

    def measure(path: Path) -> Piece:
        fsync(path)
        return Piece(path.stat().st_size, checksum(path))

    with ThreadPoolExecutor(_THREADS) as pool:
        pieces = list(pool.map(measure, paths))
    for directory in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        fsync(directory)
    return {path.relative_to(folder).as_posix(): piece for path, piece in zip(paths, pieces, strict=True)}


def read_manifest(folder: Folder) -> Manifest:
    """Raises NoManifest when there is none, when it is not whole or not one, or when a newer rlx wrote it."""
    try:
        fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if (written := fields["format"]) != FORMAT:
            raise NoManifest(f"{MANIFEST} has format {written}, this rlx reads format {FORMAT}")
        files = {name: Piece(**piece) for name, piece in fields.pop("files").items()}
        score = fields.pop("score", None)
        manifest = Manifest(files=files, score=Score(**score) if score else None, **fields)
        _require_numbers(manifest)
    except (FileNotFoundError, NotADirectoryError):
        raise NoManifest(f"{MANIFEST} is missing (the save did not finish)") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise NoManifest(f"{MANIFEST} is unreadable ({error})") from None
    if outside := [name for name in files if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]:
        raise NoManifest(f"{MANIFEST} names files that are not below it: {', '.join(outside[:3])}")
    return manifest


def _require_numbers(manifest: Manifest) -> None:
    """Raises TypeError: what somebody has edited is compared and added up like the rest."""
    sizes = {name: piece.bytes for name, piece in manifest.files.items()}
    whole = {"step": manifest.step, "serial": manifest.serial} | manifest.roles | sizes
    if wrong := next((name for name, value in whole.items() if type(value) is not int), None):
        raise TypeError(f"{wrong} has no whole number")
    if manifest.score is not None and not isinstance(manifest.score.value, int | float):
        raise TypeError(f"{manifest.score.metric} has no number")


def faults(
    folder: Folder, manifest: Manifest, parts: tuple[str, ...] = ("",), sizes: dict[str, int] | None = None
) -> list[str]:
    """Every piece below `parts` (path prefixes) that is missing or has the wrong size, and every file of tensors there
    that is none of the pieces and would be read beside them, in words; empty: all well. What somebody has put elsewhere
    in the folder does no harm. `sizes`: of all objects below `folder`, where a store has just listed them."""
    pieces = manifest.below(parts)
    if isinstance(folder, ObjectPath):
        sizes = folder.sizes() if sizes is None else sizes
        there = list(sizes)
    else:
        sizes = _sizes(folder, [name for name, _ in pieces])
        there = [path.relative_to(folder).as_posix() for path in folder.glob("*/*/*.safetensors")]
    found = [fault for name, piece in pieces if (fault := _size_fault(sizes.get(name), name, piece))]
    strange = [n for n in there if n.startswith(parts) and _OF_SHARDS.fullmatch(n) and n not in manifest.files]
    return found + [f"{name} is not of this checkpoint" for name in sorted(strange)]


def content_faults(
    folder: Folder, manifest: Manifest, parts: tuple[str, ...], progress: Callable[[int], None] | None = None
) -> list[str]:
    """Reads every piece below `parts` and names those whose checksum differs, and those that cannot be read: removed
    meanwhile, or on a disk that fails. Sizes are checked by `faults`."""

    def check(item: tuple[str, Piece], go_on: Callable[[], None]) -> str | None:
        name, piece = item

        def read(n_bytes: int) -> None:
            go_on()
            if progress:
                progress(n_bytes)

        try:
            found = checksum(folder / name, read)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"
        return None if found == piece.blake2b else f"{name} is damaged (checksum differs)"

    return [fault for fault in side_by_side(check, manifest.below(parts), _THREADS) if fault]


def _sizes(folder: Path, names: list[str]) -> dict[str, int]:
    """Of those that are there."""
    sizes = {}
    for name in names:
        with suppress(OSError):
            sizes[name] = (folder / name).stat().st_size
    return sizes


def _size_fault(size: int | None, name: str, piece: Piece) -> str | None:
    if size is None:
        return f"{name} is missing ({piece.bytes:,} bytes)"
    return None if size == piece.bytes else f"{name} has {size:,} of {piece.bytes:,} bytes"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # rlx itself runs from its source, beside an environment that does not contain it
        return "source"
