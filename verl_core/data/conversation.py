"""A conversation as token ids with a mask on what a model is to learn of it: the assistant's turns, each from its first
token to the one that ends it, and nothing else.

The ids are those of the whole conversation as the chat template renders it. Where the learned text begins must be
where a token begins, as it is when the model answers; if the tokenizer would join text across such a place, the pieces
on either side of it are tokenised apart.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from verl_core.config.errors import UserError
from verl_core.data.dataset import check_template
from verl_core.data.lengths import tokenizer_threads

Message = dict[str, Any]


class Unmaskable(ValueError):
    """What the template does, so that the learned text cannot be told from the rest."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation's text up to its last learned token, and the stretches [start, end) of it that are learned, in
    characters."""

    text: str
    learned: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ids, and for each whether it is learned (1) or given (0)."""

    ids: array[int]
    mask: array[int]

    @property
    def prompt_length(self) -> int:
        """Tokens before the first learned one."""
        return self.mask.index(1)


class Template:
    """A tokenizer's chat template, and what it makes of conversations.

    arguments: of the template, beside the messages. Raises UserError for a tokenizer without one, and for one that does
    not tell where in a text its tokens are.
    """

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Any]):
        check_template(tokenizer)
        if not tokenizer.is_fast:
            raise UserError(
                f"tokenizer {tokenizer.name_or_path!r} does not tell where in a text its tokens are",
                hint="use a model with a tokenizer.json",
            )
        self.tokenizer, self.arguments = tokenizer, arguments
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._ends = special | set(tokenizer.all_special_tokens)

    def render(self, messages: Sequence[Message], first: int, tools: Sequence[dict[str, Any]] = ()) -> Rendered:
        """The text of a conversation whose assistant's turns from message `first` on are learned. `tools`: schemas of
        functions that the template shows.

        Raises Unmaskable when the template renders a turn otherwise once later ones follow, so that no turn's text is
        the one that the model would continue, or closes a turn with no special token, so that the model would not
        learn to stop; and whatever the template raises.
        """
        shown = {"tools": list(tools)} if tools else {}
        text, learned = self._text(messages, False, shown), []
        for turn in range(first, len(messages)):
            if messages[turn]["role"] == "assistant":
                before = self._text(messages[:turn], True, shown)
                until = self._text(messages[: turn + 1], False, shown) if turn + 1 < len(messages) else text
                if not (until.startswith(before) and text.startswith(until)):
                    raise Unmaskable(
                        f"renders message {turn} otherwise than the model would be asked for it: it rewrites earlier "
                        "turns, or its generation prompt is not how an answer begins"
                    )
                learned.append((len(before), self._end(until, len(before))))
        return Rendered(text[: learned[-1][1]], tuple(learned))  # as a sampled answer ends

    def encode(self, conversations: Sequence[Rendered]) -> list[Encoded]:
        """Ids and masks."""
        if not conversations:
            return []
        out = self._tokens([c.text for c in conversations])
        found = []
        for c, ids, start in zip(conversations, *out, strict=True):
            whole = {begin for begin, _ in c.learned} <= set(start)
            found.append(Encoded(array("i", ids), _mask(start, c)) if whole else self._in_pieces(c))
        return found

    def _text(self, messages: Sequence[Message], prompt: bool, more: Mapping[str, Any]) -> str:
        return self.tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=prompt, tokenize=False, **self.arguments, **more
        )

    def _end(self, text: str, start: int) -> int:
        """Where the last special token after `start` ends; white space may follow it."""
        found = [at + len(mark) for mark in self._ends if (at := text.rfind(mark, start)) >= 0]
        if not found:
            raise Unmaskable("closes an assistant's turn with no special token, so that nothing says where to stop")
        return max(found)

    def _tokens(self, texts: list[str]) -> tuple[list[list[int]], list[list[int]]]:
        """Of each text the ids, and where their texts begin."""
        with tokenizer_threads():
            out = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        return out["input_ids"], [_starts(spans) for spans in out["offset_mapping"]]

    def _in_pieces(self, c: Rendered) -> Encoded:
        """Cut where the learned stretches begin."""
        cuts = [0, *(begin for begin, _ in c.learned)]
        ids, starts = self._tokens([c.text[a:b] for a, b in zip(cuts, [*cuts[1:], None], strict=True)])
        start = [cut + s for cut, own in zip(cuts, starts, strict=True) for s in own]
        return Encoded(array("i", chain.from_iterable(ids)), _mask(start, c))


def _starts(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Where each token's text begins: a tokenizer may leave white space out of its spans, and gives the bytes of one
    character the same span."""
    starts, end = [], 0
    for begin, until in spans:
        starts.append(min(begin, end))
        end = until
    return starts


def _mask(start: Sequence[int], c: Rendered) -> array[int]:
    return array("i", [int(any(begin <= s < end for begin, end in c.learned)) for s in start])
