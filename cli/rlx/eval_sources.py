"""What `rlx eval` is asked to score, and on which prompts: telling sources from profiles, and names from files."""

import re
from collections.abc import Sequence
from pathlib import Path

from rlx import run_records, ui
from rlx.arguments import is_deletion
from verl_core.config import catalogue, dataset_options
from verl_core.config.compose import profile_names
from verl_core.config.errors import UserError
from verl_core.config.files import path_fault, user_path
from verl_core.config.urls import is_url

HUB_NAME = re.compile(r"[\w.\-]+/[\w.\-]+")
YAML = (".yaml", ".yml")


def split(first: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(sources, the other words). Among the words after the first, a source is what lies here or could be a hub name; a
    profile's name is the profile, whatever lies here."""
    found = [word for word in words if _is_source(word)]
    return [first, *found], [word for word in words if word not in found]


def _is_source(word: str) -> bool:
    if word.startswith("builtin:"):
        return True
    if not word or "=" in word or word.startswith("+") or is_deletion(word) or word.endswith(YAML):
        return False
    if is_url(word):
        return True
    if path_fault(word) or word in profile_names():
        return False
    path = Path(word).expanduser()
    return path.is_dir() or ("/" in word and not path.exists())


def run_of(source: str) -> Path | None:
    """The run that `source` is or lies in, None for a plain model and for a URL. UserError for a path that does not
    exist."""
    if source.startswith("builtin:") or is_url(source):
        return None
    path = user_path(source, "MODEL_OR_RUN")
    if path.exists():
        places = (path.absolute(), path.resolve())  # a link to a checkpoint lies in no run, what it points to does
        folders = (folder for place in places for folder in (place, *place.parents))
        return next((folder for folder in folders if run_records.is_run(folder)), None)
    if not HUB_NAME.fullmatch(source) or source.startswith("."):
        raise UserError(f"there is no model or run at {source}", "`rlx runs ls` lists the runs here")
    ui.note(f"{source} is no folder here: it is taken for a model of the Hugging Face hub")
    return None


def prompts(name: str, what: str = "--data") -> str:
    """What --data, or another argument, names: a file, a folder or a glob as it is, or the folder of a data set that
    `rlx prepare` made.

    Raises UserError for a path that is not there and for a data set that is not prepared.
    """
    path = user_path(name, what)
    if name.startswith("builtin:") or path.exists() or any(sign in name for sign in "*?["):
        return name
    if name.partition(":")[0] not in (known := catalogue.names("dataset")):
        raise UserError(f"{what} {name} does not exist", f"a file, or one of {', '.join(known)}")
    dataset_options.find(name)
    folder = Path("~/data").expanduser() / dataset_options.folder(name, None)
    if not folder.is_dir():
        raise UserError(f"{what} {name}: it is not prepared, there is no {folder}", f"rlx prepare {name}")
    return str(folder)
