"""The model card of a merged folder: what it was trained from and how, where the folder's owner has written none.

A card is public while a run may not be: it holds names and numbers, and no path. Format:
https://huggingface.co/docs/hub/model-cards
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_core.config import yaml_text
from verl_core.config.errors import UserError
from verl_core.config.files import lock_dir
from verl_core.models.adapter_folder import CONFIG as ADAPTER_CONFIG
from verl_core.tracking.files import read_json

CARD = "README.md"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_SEAL = re.compile(r"<!-- rlx ([0-9a-f]{16}) -->\n\Z")


@dataclass(frozen=True)
class Origin:
    """What a card says of the training; None: not known, and not said."""

    base: str | None = None
    """Path or hub name of the model that training started from."""
    profile: str | None = None
    algorithm: str | None = None
    step: int | None = None
    trainer: str | None = None
    """Format of a checkpoint that another program wrote: "veRL FSDP"."""


def origin_of(checkpoint: Path, step: int | None, base: str | None = None, trainer: str | None = None) -> Origin:
    """Of a checkpoint that another program wrote, what it says; of rlx's own, what its run's records say too.

    Raises UserError for records that cannot be read.
    """
    if trainer is not None:
        return Origin(base, step=step, trainer=trainer)
    if checkpoint.absolute().parent.name != "checkpoints":  # copied out of its run
        return Origin(base, step=step)
    run = checkpoint.absolute().parent.parent
    try:
        config = yaml_text.read((run / "config.yaml").read_text(encoding="utf-8"))
        trained, algorithm = config["model"]["path"], config["algorithm"]["name"]
    except FileNotFoundError:
        trained = algorithm = None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run / 'config.yaml'} cannot be read: {error}", "copy the run's records again") from error
    return Origin(base or trained, read_json(run / "run.json").get("profile"), algorithm, step)


def hub_name(base: str | None) -> str | None:
    """`base` where it has the form of a hub's name and is no folder here: a path is nobody's business."""
    return base if base and _HUB_NAME.fullmatch(base) and not Path(base).exists() else None


def write_card(folder: Path, name: str, origin: Origin) -> None:
    """Writes README.md into a merged folder that has none. `name`: the heading. `origin.base` is said as it stands."""
    if not (folder / CARD).exists():
        text = _text(folder, name, origin)
        (folder / CARD).write_text(f"{text}<!-- rlx {_digest(text)} -->\n", encoding="utf-8")


def is_generated(card: Path) -> bool:
    """Whether rlx wrote the card and nobody has changed it since."""
    text = card.read_text(encoding="utf-8", errors="replace")
    seal = _SEAL.search(text)
    return seal is not None and seal[1] == _digest(text[: seal.start()])


def _text(folder: Path, name: str, origin: Origin) -> str:
    adapter = (folder / ADAPTER_CONFIG).is_file()
    network = ", ".join(read_json(folder / "config.json").get("architectures") or ["a model"])
    metadata: dict[str, Any] = {"library_name": "peft" if adapter else "transformers"}
    if origin.base:
        metadata["base_model"] = origin.base
    metadata["tags"] = ["rlx", *([origin.algorithm] if origin.algorithm else [])]
    rows = {
        "Weights": "a LoRA adapter" if adapter else network,
        "Base model": origin.base,
        "Checkpoint": origin.trainer or ("rlx" if origin.profile else None),
        "Profile": origin.profile,
        "Algorithm": origin.algorithm,
        "Step": origin.step,
        "Merged by": f"rlx {_version()}",
    }
    table = [f"| {key} | {value} |" for key, value in rows.items() if value is not None]
    head = ["---", yaml_text.write(metadata).strip(), "---", "", f"# {name}", ""]
    return "\n".join([*head, "| | |", "|---|---|", *table, "", ""])


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _version() -> str:
    """From pyproject.toml: rlx is not installed inside its own environments."""
    return str(tomllib.loads((lock_dir() / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
