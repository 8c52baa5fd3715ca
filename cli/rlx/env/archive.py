"""The archive that `rlx env pack` writes: a plain tar with

    manifest.json    what it holds and for which machine (first, so that it is read at once)
    uv.lock  pyproject.toml
    wheels/*.whl     as the index has them, not compressed again

Times and owners are left out: the same packages give the same archive, bit for bit.
"""

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlx.env.fetch import digest_of
from verl_core.config.errors import EnvError, UserError

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_LIMIT = 16 << 20
"""Bytes; 400 packages take 120 kB."""
WHEEL_NAME = re.compile(r"\w[\w.+!-]*\.whl")
DIGEST = re.compile(r"[0-9a-f]{64}")
GLIBC = re.compile(r"\d+\.\d+")


@dataclass(frozen=True)
class Wheel:
    """A wheel of the archive. `built_from` is the SHA-256 of the locked source it was built from, None for a locked
    wheel; sizes are bytes, packed and installed."""

    name: str
    version: str
    file: str
    sha256: str
    n_bytes: int
    n_installed: int
    built_from: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What an archive holds, and what it is for."""

    rlx: str
    lock: str  # SHA-256 of uv.lock
    pyproject: str  # SHA-256 of pyproject.toml
    extras: tuple[str, ...]
    python: str  # minor version: 3.12
    system: str  # sys.platform
    machine: str
    glibc: str | None  # the oldest that all wheels run on; None when none asks
    wheels: tuple[Wheel, ...]

    @property
    def n_installed(self) -> int:
        return sum(wheel.n_installed for wheel in self.wheels)

    @property
    def n_bytes(self) -> int:
        return sum(wheel.n_bytes for wheel in self.wheels)


def write(
    path: Path, manifest: Manifest, files: Sequence[tuple[str, Path]], on_bytes: Callable[[int, str], None]
) -> int:
    """Write the archive under a temporary name and move it to `path`, or to what a symlink there leads to; returns its
    bytes.

    `files` are (name in the archive, source). Whatever goes wrong, no half archive is left. Raises OSError.
    """
    path = Path(os.path.realpath(path))
    draft = path.parent / f".rlx-{os.getpid()}.part"  # not the archive's name and more, which may be too long
    try:
        with tarfile.open(draft, "w", format=tarfile.PAX_FORMAT) as tar:
            text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1).encode()
            tar.addfile(_member(MANIFEST, len(text)), io.BytesIO(text))
            for name, source in files:
                with source.open("rb") as stream:
                    tar.addfile(_member(name, source.stat().st_size), stream)
                on_bytes(source.stat().st_size, name)
        n_bytes = draft.stat().st_size
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return n_bytes


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member


@contextmanager
def opened(path: Path) -> Iterator[tarfile.TarFile]:
    """The archive for reading. UserError when there is no file to read, EnvError when it is no tar or ends early."""
    try:
        stream = path.open("rb")
    except FileNotFoundError as problem:
        raise UserError(f"the archive {path} does not exist", "`rlx env pack --out FILE` makes one") from problem
    except OSError as problem:
        raise UserError(
            f"the archive {path} cannot be read: {problem.strerror}", "check its path and mode"
        ) from problem
    try:
        with stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            yield tar
    except tarfile.TarError as problem:
        raise _broken(path, str(problem)) from problem


def read_manifest(path: Path) -> Manifest:
    """What the archive says of itself; only its head is read. EnvError when it is not an archive of rlx."""
    with opened(path) as tar:
        member = tar.next()
        if member is None or member.name != MANIFEST or not member.isreg() or member.size > MANIFEST_LIMIT:
            raise _broken(path, f"it does not begin with {MANIFEST}")
        stream = tar.extractfile(member)
        assert stream is not None
        try:
            return _manifest(json.loads(stream.read()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise _broken(path, f"its {MANIFEST} cannot be read ({problem})") from problem


def _manifest(content: dict[str, Any]) -> Manifest:
    """The parsed text as a Manifest. ValueError, KeyError, TypeError or AttributeError when it is not one."""
    if content.pop("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}: another version of rlx wrote it")
    wheels = tuple(Wheel(**entry) for entry in content.pop("wheels"))
    manifest = Manifest(**{**content, "extras": tuple(content["extras"])}, wheels=wheels)
    for wheel in wheels:
        if not WHEEL_NAME.fullmatch(wheel.file):
            raise ValueError(f"{wheel.file!r} is not the name of a wheel")
        if not DIGEST.fullmatch(wheel.sha256) or wheel.n_bytes + wheel.n_installed < 0:
            raise ValueError(f"{wheel.file} has no SHA-256 or no size")
    texts = (manifest.rlx, manifest.lock, manifest.pyproject, manifest.python, manifest.system, manifest.machine)
    if not all(isinstance(text, str) and text.isprintable() for text in (*texts, *manifest.extras)):
        raise ValueError("what it is for is not told in words")
    if manifest.glibc is not None and not GLIBC.fullmatch(manifest.glibc):
        raise ValueError(f"glibc {manifest.glibc!r} is not a version")
    return manifest


def extract(
    path: Path, manifest: Manifest, wanted: set[str], folder: Path, on_bytes: Callable[[int, str], None]
) -> None:
    """Unpack the two text files and the wheels named in `wanted`, each verified against the manifest.

    Raises EnvError for a member that the manifest does not name, a link, a file with holes (it may be of any size),
    a path that leads out, a wrong hash, or a file that is missing; OSError when the disk is full.
    """
    digests = {"uv.lock": manifest.lock, "pyproject.toml": manifest.pyproject}
    digests |= {f"wheels/{wheel.file}": wheel.sha256 for wheel in manifest.wheels}
    missing = {"uv.lock", "pyproject.toml", *(f"wheels/{name}" for name in wanted)}
    with opened(path) as tar:
        for member in tar:
            if member.name == MANIFEST:
                continue
            if member.name not in digests or not member.isreg() or member.issparse():
                raise _broken(path, f"{member.name!r} does not belong into it")
            if member.name in missing:
                _extract_one(path, tar, member, digests[member.name], folder)
                missing.discard(member.name)
            on_bytes(member.size, member.name)
    if missing:
        raise _broken(path, f"{min(missing)} is missing")


def _extract_one(path: Path, tar: tarfile.TarFile, member: tarfile.TarInfo, sha256: str, folder: Path) -> None:
    try:
        tar.extract(member, folder, filter="data")
    except tarfile.FilterError as problem:
        raise _broken(path, str(problem)) from problem
    if digest_of(folder / member.name) != sha256:
        raise _broken(path, f"{member.name} has another SHA-256 than its manifest says")


def _broken(path: Path, what: str) -> EnvError:
    return EnvError(f"{path} cannot be used: {what}", "copy it again, or pack it again: `rlx env pack --out FILE`")
