"""Finds veRL's trainer among the words of a command."""

import re
from dataclasses import dataclass, field
from typing import Literal

from verl_core.config.verl_script.text import Text

_MODULE = re.compile(r"(?:verl|recipe)(?:\.\w+)*\.(?:main_\w+|\w*sft_trainer\w*|fully_async_main)")
_FILE = re.compile(r"(?:.*/)?(?:verl|recipe)/(?:\w+/)*(?:main_\w+|\w*sft_trainer\w*|fully_async_main)\.py")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_RANKS = re.compile(r"--(nnodes|nproc[-_]per[-_]node)(?:=(.*))?")


@dataclass
class Launch:
    line: int
    """Where in the script it stands, from 1."""
    module: str
    """The Python module that is started, `verl.trainer.main_ppo` for example."""
    arguments: list[Text]
    """The words after it."""
    ranks: dict[str, Text] = field(default_factory=dict)
    """torchrun's nnodes and nproc_per_node."""
    doubt: str = ""
    """Why it may not be reached; empty when it is."""

    @property
    def kind(self) -> Literal["ppo", "sft", "other"]:
        """What the module trains; other: nothing that rlx train does."""
        name = self.module.rpartition(".")[2]
        if "sft_trainer" in name:
            return "sft"
        return "other" if name in ("main_eval", "main_generation", "main_generation_server") else "ppo"


def find(words: list[Text], line: int) -> Launch | None:
    """The launch that a command's words make, behind whatever starts it (env, nohup, torchrun, `ray job submit --`)."""
    for i, word in enumerate(words):
        module = word.text if i and words[i - 1].text == "-m" and _MODULE.fullmatch(word.text) else None
        if not module and i and _FILE.fullmatch(word.text):
            module = re.sub(r"^.*?\b(?=(?:verl|recipe)\.)", "", word.text.removesuffix(".py").replace("/", "."))
        if module:
            return Launch(line, module, words[i + 1 :], _ranks(words[:i]))
    return None


def script_in(words: list[Text]) -> Text | None:
    """The shell text that `bash -c TEXT` and `eval TEXT` hold."""
    texts = [word.text for word in words]
    if texts[:1] == ["eval"]:
        return Text(" ".join(texts[1:]))
    for i, text in enumerate(texts[:-2]):
        if re.fullmatch(r"(?:.*/)?(?:ba)?sh", text) and re.fullmatch(r"-[a-z]*c", texts[i + 1]):
            return words[i + 2]
    return None


def environment(words: list[Text]) -> dict[str, Text]:
    """`NAME=value` words at the start of a command, with or without `env`."""
    found: dict[str, Text] = {}
    for word in words:
        if _ASSIGNMENT.match(word.text):
            name, _, text = word.text.partition("=")
            found[name] = word.with_text(text)
        elif word.text not in ("env", "nohup", "exec"):
            break
    return found


def _ranks(words: list[Text]) -> dict[str, Text]:
    found = {}
    for i, word in enumerate(words):
        if option := _RANKS.fullmatch(word.text):
            following = words[i + 1] if option[2] is None and i + 1 < len(words) else word.with_text(option[2] or "")
            found[option[1].replace("-", "_")] = following
    return found
