"""Where rlx's own files lie (profiles, templates, the lock), and the source path a child interpreter needs."""

import os
import tempfile
from pathlib import Path
from zlib import crc32

import verl_core
from verl_core.config.errors import EnvError, UserError

LONGEST_PART, LONGEST_PATH = 255, 4095
"""Bytes that Linux takes for a file's name, and for a whole path."""

CORE = Path(verl_core.__file__).resolve().parent


def _checkout() -> Path | None:
    """The checkout's root, or None when rlx runs from an installed wheel."""
    root = CORE.parent
    return root if (root / "profiles").is_dir() and (root / "uv.lock").is_file() else None


def data_root() -> Path:
    """Folder that holds profiles/, templates/, pyproject.toml and uv.lock: the checkout, else the wheel's rlx/_data.

    Raises EnvError when neither is there.
    """
    root = _checkout() or CORE.parent / "rlx" / "_data"
    if not (root / "profiles").is_dir():
        raise EnvError(f"rlx's own files are missing: no profiles in {root}", "install rlx again")
    return root


def profiles_dir() -> Path:
    return data_root() / "profiles"


def templates_dir() -> Path:
    return data_root() / "templates"


def lock_dir() -> Path:
    """Folder with pyproject.toml and uv.lock."""
    return data_root()


def cache_dir() -> Path:
    """RLX_CACHE, else $XDG_CACHE_HOME/rlx, else ~/.cache/rlx. Not created here."""
    if moved := os.environ.get("RLX_CACHE"):
        return Path(moved).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "rlx"


def path_fault(text: str) -> str | None:
    """Why no file system takes this for a path; None for one that may be there."""
    if "\0" in text:
        return "a path holds no NUL character"
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        return f"no user has the home {Path(text).parts[0]}"
    if len(os.fsencode(path)) > LONGEST_PATH or any(len(os.fsencode(part)) > LONGEST_PART for part in path.parts):
        return "too long for a path"
    return None


def user_path(text: str | Path, what: str) -> Path:
    """A path as a user gave it, `~` expanded. Raises UserError naming `what` for one that cannot be a path."""
    if fault := path_fault(str(text)):
        raise UserError(f"{what} {str(text)[:80]}: {fault}", "check the path")
    return Path(text).expanduser()


def source_paths() -> list[Path]:
    """What stands on a child's PYTHONPATH so that it imports this rlx and verl_core, and nothing else of the
    site-packages rlx may be installed in: in a checkout its two source roots, else a folder with two symlinks.

    Raises EnvError when the folder of symlinks cannot be made.
    """
    if root := _checkout():
        return [root / "cli", root]
    packages = CORE.parent
    links = cache_dir() / "source" / f"{crc32(os.fsencode(packages)):08x}"
    try:
        links.mkdir(parents=True, exist_ok=True)
        for name in ("rlx", "verl_core"):
            _point(links / name, packages / name)
    except OSError as error:
        raise EnvError(f"cannot write {links}: {error.strerror}", "set RLX_CACHE to a folder you can write") from error
    return [links]


def _point(link: Path, target: Path) -> None:
    """Makes `link` a symlink to `target`; safe when several processes do it at once."""
    if link.is_symlink() and link.readlink() == target:
        return
    with tempfile.TemporaryDirectory(dir=link.parent) as folder:
        fresh = Path(folder) / link.name
        fresh.symlink_to(target, target_is_directory=True)
        fresh.replace(link)
