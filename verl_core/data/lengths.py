"""How long a prompt is in tokens: an upper bound by its bytes, and cutting to a limit."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SWITCH = "TOKENIZERS_PARALLELISM"
_PROCESS = os.getpid()  # in one that was forked from it, a tokenizer would wait for ever for threads that are not there
_APART = re.compile(r"<[^<>]+>")
NFC_GROWTH = 3  # most that a text grows in UTF-8 when it is brought to the form NFC (Unicode FAQ on normalization)
KNOWN = 256  # stretches of text whose tokens are remembered


def fit_proof(tokenizer: Any) -> Callable[[str, int], bool] | None:
    """A function that says of a text whether it surely has at most so many tokens (none added); None where nothing is
    proved of this tokenizer.

    It holds for byte-level BPE (GPT-2, Llama 3, Qwen and most others since): every token stands for one byte or more of
    the text as it is normalised, and whatever is cut out of it as an added token is one token for one character or
    more. Bytes are only added by a normaliser, which may be none or NFC, and by a space before the text. Pre-tokenisers
    that cut add none. Added tokens such as `<|im_end|>` are cut out first, wherever they stand, and count one each.
    What stands between them is tokenised apart, so of stretches that texts share (a system message) tokens are counted.
    """
    if not (getattr(tokenizer, "is_fast", False) and type(tokenizer).__module__.startswith("transformers.")):
        return None  # code of a checkpoint's own may do anything
    from tokenizers.models import BPE

    backend = tokenizer.backend_tokenizer
    if not isinstance(backend.model, BPE) or backend.model.byte_fallback or not _cuts_bytes(backend.pre_tokenizer):
        return None
    normaliser = _description(backend.normalizer)
    if normaliser is not None and normaliser["type"] != "NFC":
        return None
    added, normalises = _added_tokens(tokenizer), normaliser is not None

    def most(text: str) -> int:
        if text.isascii():
            return len(text)
        growth = NFC_GROWTH if normalises and not unicodedata.is_normalized("NFC", text) else 1
        return growth * len(text.encode("utf-8", "surrogatepass"))

    stretches = _Stretches(tokenizer, most)

    def fits(text: str, limit: int) -> bool:
        if most(text) <= limit:
            return True
        if added is None:
            return False
        apart = added.split(text)
        return len(apart) - 1 + stretches.most(apart) <= limit

    return fits


@contextmanager
def tokenizer_threads() -> Iterator[None]:
    """Inside, a tokenizer cuts a batch of texts in as many threads as there are cores; in a process that was forked, in
    none. Jobs run with TOKENIZERS_PARALLELISM=false: afterwards it is again what it was."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "true" if os.getpid() == _PROCESS else "false"
    try:
        yield
    finally:
        os.environ[SWITCH] = before if before is not None else "false"


def truncate(ids: array[int], limit: int, mode: str) -> array[int]:
    """At most `limit` ids: the right end (mode left), the left end (right), or both ends (middle)."""
    if len(ids) <= limit:
        return ids
    if mode == "left":
        return ids[-limit:]
    if mode == "right":
        return ids[:limit]
    head = limit // 2
    return ids[:head] + ids[len(ids) - (limit - head) :]


class _Stretches:
    """Bounds on the tokens of stretches of text: exact ones of those that the text before had, too."""

    def __init__(self, tokenizer: Any, most: Callable[[str], int]):
        self._tokenizer, self._most = tokenizer, most
        self._known: dict[str, int] = {}
        self._before: set[str] = set()

    def most(self, stretches: list[str]) -> int:
        """At most so many tokens have the stretches of one text together."""
        for shared in self._before.intersection(stretches) - self._known.keys():
            if len(self._known) < KNOWN:
                self._known[shared] = len(self._tokenizer(shared, add_special_tokens=False)["input_ids"])
        self._before = set(stretches)
        return sum(self._known[s] if s in self._known else self._most(s) for s in stretches)


def _added_tokens(tokenizer: Any) -> re.Pattern[str] | None:
    """Finds the tokenizer's added tokens as it does itself; None where it may find others. Tokens of the form `<...>`
    with no angle brackets inside never overlap, so that no choice is left between them."""
    tokens = list(tokenizer.added_tokens_decoder.values())
    alike = all(
        _APART.fullmatch(t.content) and not (t.lstrip or t.rstrip or t.single_word or t.normalized) for t in tokens
    )
    if not tokens or not alike or tokenizer.backend_tokenizer.encode_special_tokens:
        return None
    return re.compile("|".join(re.escape(t.content) for t in tokens))


def _cuts_bytes(pre_tokeniser: Any) -> bool:
    """Whether it makes bytes of the text once, adds none, and else only cuts."""
    if (found := _description(pre_tokeniser)) is None:
        return False
    steps = found["pretokenizers"] if found["type"] == "Sequence" else [found]
    byte_level = [step for step in steps if step["type"] == "ByteLevel"]
    cuts = all(step["type"] in ("ByteLevel", "Split", "Digits") for step in steps)
    return cuts and len(byte_level) == 1 and not byte_level[0]["add_prefix_space"]


def _description(part: Any) -> dict[str, Any] | None:
    """A part of a tokenizer as tokenizer.json has it."""
    return None if part is None else json.loads(part.__getstate__())
