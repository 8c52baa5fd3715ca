"""What is wrong with single keys, whatever the others are: names, ranges, paths, empty text."""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping

from verl_core.config.catalogue import KINDS, names
from verl_core.config.files import path_fault
from verl_core.config.ranges import out_of_range
from verl_core.config.schema import FACTS, RlxConfig
from verl_core.config.typed import show
from verl_core.config.urls import holds_credentials, url_fault

PATHS = (
    "data.train_files",
    "data.val_files",
    "data.curriculum.path",
    "model.path",
    "model.tokenizer_path",
    "model.lora_adapter_path",
    "critic.model.path",
    "algorithm.module",
    "reward.custom_reward_function.path",
    "reward.reward_model.path",
    "reward.judge.path",
    "reward.judge.instruction_file",
    "reward.judge.cache",
    "trainer.default_local_dir",
    "weights.folder",
)
"""Keys that name files or folders of the machine."""

LONGEST_NAME = 200  # bytes; file systems take 255, and files beside the folder may carry its name


class Said:
    """Names a key for a message: its value as given, and who gave it."""

    def __init__(self, config: RlxConfig, origins: Mapping[str, str]):
        self.config, self.origins = config, origins

    def __call__(self, key: str) -> str:
        return f"{key}={show(self.value(key))} ({self.origin(key)})"

    def value(self, key: str) -> object:
        value: object = self.config
        for step in key.replace("[", ".").replace("]", "").split("."):
            if isinstance(value, dict):
                value = value[step]
            elif isinstance(value, list | tuple):
                value = value[int(step)]
            else:
                value = getattr(value, step)
        return value

    def origin(self, key: str) -> str:
        return self.origins.get(key.split("[")[0], "default")

    def given(self, key: str) -> bool:
        return self.origin(key) != "default" and self.value(key) is not None


def each_key(config: RlxConfig, origins: Mapping[str, str]) -> list[str]:
    """What is wrong with single keys, whatever the others are."""
    said = Said(config, origins)
    ranges = [f"{said(key)} is not in {allowed}" for key, allowed in out_of_range(config)]
    return [*_names(said), *_folders(said), *_empty(said), *_paths(said), *_urls(said), *ranges]


def _names(said: Said) -> Iterator[str]:
    """Names that must be in the catalogue."""
    for key, kind in KINDS.items():
        given, choices = said.value(key), names(kind)
        for value in given if isinstance(given, list) else [given]:
            if value is not None and value not in choices:
                near = difflib.get_close_matches(str(value), choices, n=1)
                question = f"; did you mean {near[0]}?" if near else ""
                yield f"{said(key)}: expected one of {', '.join(choices)}{question}"


def _folders(said: Said) -> Iterator[str]:
    """Names that become folders: each is one folder, and below trainer.default_local_dir."""
    for key in ("trainer.project_name", "trainer.experiment_name"):
        value = said.value(key)
        if isinstance(value, str) and (value in ("", ".", "..") or "/" in value or not value.isprintable()):
            yield f"{said(key)}: expected the name of one folder, without / (trainer.default_local_dir says where)"
        elif isinstance(value, str) and len(value.encode()) > LONGEST_NAME:
            yield f"{said(key)}: {len(value.encode())} bytes are too long for a folder's name, {LONGEST_NAME} fit"


def _empty(said: Said) -> Iterator[str]:
    """Text that names something and is empty. A profile's facts and free mappings may hold empty text; null, where it
    is allowed, unsets."""
    for key in _empty_texts(said.config, ""):
        if key not in FACTS:
            yield f"{said(key)}: expected text that is not empty"


def _paths(said: Said) -> Iterator[str]:
    """Paths that no file system takes, whatever is there."""
    for key in PATHS:
        given = said.value(key)
        for path in given if isinstance(given, list) else [given]:
            if isinstance(path, str) and (fault := path_fault(path)):
                yield f"{said(key)}: {fault}"


def _urls(said: Said) -> Iterator[str]:
    """URLs that name no folder of an object store."""
    key = "trainer.checkpoint_url"
    url = str(said.value(key) or "")
    if url and (fault := url_fault(url)):
        named = f"{key} ({said.origin(key)})" if holds_credentials(url) else said(key)
        yield f"{named}: {fault}"


def _empty_texts(value: object, path: str) -> Iterator[str]:
    """Keys with an empty text, list positions and pools included."""
    if value == "":
        yield path
    elif dataclasses.is_dataclass(value):
        for item in dataclasses.fields(value):
            yield from _empty_texts(getattr(value, item.name), f"{path}.{item.name}" if path else item.name)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _empty_texts(item, f"{path}[{i}]")
