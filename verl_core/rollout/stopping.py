"""Stop strings: text that ends a sequence, found while its tokens arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_REPLACEMENT = "\ufffd"  # what a decoder prints for bytes that are no complete character
_LONGEST_CHARACTER = 4  # bytes of UTF-8; a byte-level tokenizer may need that many tokens


class StopStrings:
    """Watches one sequence for stop strings, a token at a time.

    Only the last few tokens are decoded: with the token before them, because some decoders treat the first token
    apart, and held until they form whole characters, because a character may span tokens.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str]):
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._keep = max(len(s) for s in self._stop) - 1
        self._tail = ""  # the end of the text so far, too short to hold a whole stop string
        self._window: list[int] = []  # ids: context first, then those whose text is not yet in the tail
        self._context = 0  # how many ids of the window are context

    def push(self, token: int) -> str | None:
        """Takes the next token; returns the stop string that it completes, if any."""
        self._window.append(token)
        before = self._decode(self._window[: self._context])
        text = self._tail + self._decode(self._window)[len(before) :]
        found = next((s for s in self._stop if s in text), None)
        pending = len(self._window) - self._context
        if not text.endswith(_REPLACEMENT) or pending >= _LONGEST_CHARACTER:
            self._tail = text[-self._keep :] if self._keep else ""
            self._window = self._window[self._context :]
            self._context = len(self._window)
        return found

    def _decode(self, ids: list[int]) -> str:
        if not ids:
            return ""
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
