"""Data that comes with rlx, by name: `builtin:NAME` are prompts, `builtin:NAME/PART` are demonstrations."""

from types import ModuleType
from typing import Any, Literal

from verl_core.config.errors import UserError
from verl_core.data import show_your_work

PREFIX = "builtin:"
TASKS: dict[str, ModuleType] = {"show-your-work": show_your_work}
PARTS = ("worked", "habit")


def is_builtin(path: str) -> bool:
    return path.startswith(PREFIX)


def builtin_rows(path: str, split: Literal["train", "test"], seed: int) -> list[dict[str, Any]]:
    """Rows with veRL's columns of `builtin:NAME`. Raises UserError for an unknown name."""
    return _task(path, "data set").rows(split, seed)


def builtin_pairs(path: str, split: Literal["train", "test"], seed: int) -> list[dict[str, Any]]:
    """Rows of `builtin:NAME` with prompt, chosen and rejected. Raises UserError for an unknown name."""
    return _task(path, "data set").pairs(split, seed)


def builtin_demonstrations(path: str, n: int, seed: int) -> list[tuple[str, str]]:
    """`n` (question, answer) pairs of `builtin:NAME/PART`. Raises UserError for an unknown name or part."""
    name, _, part = path.removeprefix(PREFIX).partition("/")
    if not is_builtin(path) or name not in TASKS or part not in PARTS:
        raise UserError(
            f"no demonstrations {path!r}",
            hint="known are " + ", ".join(f"{PREFIX}{n}/{p}" for n in TASKS for p in PARTS),
        )
    return TASKS[name].demonstrations(part, n, seed)  # type: ignore[arg-type]


def builtin_corpus(path: str, seed: int) -> list[str]:
    """Texts to train the tokenizer of the builtin model `path` on. Raises UserError for an unknown name."""
    return _task(path, "model").corpus(seed)


def _task(path: str, what: str) -> ModuleType:
    name = path.removeprefix(PREFIX)
    if name not in TASKS:
        raise UserError(f"no builtin {what} {path!r}", hint="known are " + ", ".join(PREFIX + n for n in TASKS))
    return TASKS[name]
