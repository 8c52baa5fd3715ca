"""One `key=value` word of the command line."""

import re
from dataclasses import dataclass
from typing import Any, get_args

from verl_core.config import keys, yaml_text
from verl_core.config.typed import MISSING, Problem, build, near_keys, steps, type_at

_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*")


@dataclass
class Override:
    path: str
    """rlx's key; empty for a veRL key that asks for what rlx always does."""
    value: Any
    note: str | None = None


def parse(word: str) -> Override | Problem:
    """Reads `key=value`: the value is YAML, except that a text key takes it as it stands (`name=007` is not 7).

    veRL's keys are translated; `+key` is `key` on veRL's paths.
    """
    key, equals, text = word.partition("=")
    key = key.strip()
    if not equals or not _KEY.fullmatch(key.removeprefix("+")):
        return Problem(word, MISSING, "not a key=value word" + (" (null unsets a key)" if key.startswith("~") else ""))
    if key.startswith("+"):
        key = key[1:]
        if not keys.is_verl_path(key):
            return Problem(f"+{key}", MISSING, f"keys here need no +: write {key}=...")
    read = _read(text, MISSING)
    target = keys.translate(key, read)
    if isinstance(target, Problem):
        return target
    if target.path is None:
        return Override("", None, target.note)
    tp = type_at(steps(target.path))
    if tp is MISSING:
        return Problem(target.path, _read(text, MISSING), "no such key", near_keys(target.path))
    try:
        value = target.value if target.value is not read else _text(text, tp) if _is_text(tp) else yaml_text.read(text)
    except ValueError as error:
        return Problem(target.path, text, f"not a YAML value: {error}")
    problems: list[Problem] = []
    build(tp, value, target.path, problems, partial=True)
    return problems[0] if problems else Override(target.path, value, target.note)


def _is_text(tp: Any) -> bool:
    return tp is str or set(get_args(tp)) == {str, type(None)}


def _text(text: str, tp: Any) -> str | None:
    """A text value as typed; quotes are YAML's, and null (nothing, where null is possible) is null."""
    text = text.strip()
    if text[:1] in {"'", '"'}:
        return yaml_text.read(text)
    return None if text in {"null", "~"} or (not text and tp is not str) else text


def _read(text: str, otherwise: Any) -> Any:
    try:
        return yaml_text.read(text)
    except ValueError:
        return text if otherwise is MISSING else otherwise
