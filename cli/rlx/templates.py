"""Fills in the files of templates/, and quotes what goes into them."""

import shlex
import string
from collections.abc import Iterable, Mapping

from verl_core.config.files import data_root, templates_dir


class Template(string.Template):
    """`@@{name}` is replaced, so that the shell's and YAML's own `$` stay as they are."""

    delimiter = "@@"


def fill(name: str, values: Mapping[str, object]) -> str:
    """The text of templates/<name> with every `@@{key}` replaced; KeyError for one that has no value."""
    return Template((templates_dir() / name).read_text(encoding="utf-8")).substitute(values)


def shell_words(words: Iterable[str]) -> str:
    """Words as a shell reads them back."""
    return " ".join(map(shlex.quote, words))


def rlx_command() -> list[str]:
    """How scripts call this rlx: through its checkout, or by name where it is installed."""
    root = data_root()
    return ["uv", "run", "--project", str(root), "rlx"] if (root / "cli").is_dir() else ["rlx"]
