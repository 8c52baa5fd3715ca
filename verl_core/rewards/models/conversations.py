"""A prompt's messages and an answer to them as token ids, by the chat template of the model that is to read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_core.config.errors import UserError
from verl_core.config.schema_reward_models import RewardModelConfig
from verl_core.rewards.verdict import ScoreRequest

_ROUNDS = 8  # of taking special tokens out of a text; what is left after one is made of other ones' halves


class Unscorable(ValueError):
    """A conversation that a model cannot read; the text says why."""


def require_template(tokenizer: Any, of: str) -> None:
    """Raises UserError for a tokenizer without a chat template. `of`: the key that names it."""
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            f"the tokenizer of {of} has no chat template",
            "put a chat_template.jinja into its folder: the one it was trained with",
        )


class PlainText:
    """Text without the tokenizer's special tokens: an answer that spells one out (`<|im_end|>`) would end its own turn
    and begin another one. They get a space behind their first character. Lone surrogates, which no tokenizer takes, are
    question marks."""

    def __init__(self, tokenizer: Any):
        marks = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        self.marks = sorted(marks | set(tokenizer.all_special_tokens), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        text = text.encode(errors="replace").decode()
        for _ in range(_ROUNDS):
            found = [mark for mark in self.marks if mark in text]
            if not found:
                break
            for mark in found:
                text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return text


class Conversations:
    """Conversations as a reward model reads them.

    Args:
        tokenizer: the reward model's own.
        longest: tokens that a conversation may have; None: any number.

    Raises:
        UserError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, cfg: RewardModelConfig, longest: int | None):
        require_template(tokenizer, f"reward.reward_model.path={cfg.path}")
        self.tokenizer, self.cfg, self.longest, self.plain = tokenizer, cfg, longest, PlainText(tokenizer)

    def encode(self, requests: Sequence[ScoreRequest]) -> list[list[int] | Unscorable]:
        """Ids up to the token that the score is read at; for a conversation that cannot be read, why."""
        texts = [self._text(request) for request in requests]
        good = [text for text in texts if isinstance(text, str)]
        found = iter(self.tokenizer(good, add_special_tokens=False)["input_ids"] if good else [])
        return [text if isinstance(text, Unscorable) else self._bounded(next(found)) for text in texts]

    def _text(self, request: ScoreRequest) -> str | Unscorable:
        answer = {"role": "assistant", "content": self.plain(request.solution)}
        try:
            text = self.tokenizer.apply_chat_template([*map(dict, request.prompt), answer], tokenize=False)
        except Exception as error:  # a template is a program of its own: it raises what it likes
            return Unscorable(f"the reward model's chat template refuses the conversation: {error}")
        return text if self.cfg.read_at == "text_end" else self._to_the_turns_end(text)

    def _to_the_turns_end(self, text: str) -> str:
        """Without white space behind the special token that ends the last turn; whole where none does."""
        kept = text.rstrip()
        return kept if any(kept.endswith(mark) for mark in self.plain.marks) else text

    def _bounded(self, ids: list[int]) -> list[int] | Unscorable:
        limit, mode = self.longest, self.cfg.truncation
        if not ids:
            return Unscorable("the reward model's chat template renders nothing")
        if limit is None or len(ids) <= limit:
            return ids
        if mode == "fail":
            return Unscorable(f"longer than the {limit} tokens that the reward model takes")
        head = {"left": 0, "right": limit, "middle": limit // 2}[mode]
        return ids[:head] + ids[len(ids) - (limit - head) :]
