"""Supervised batches of (question, answer) pairs, as the warm-up of a builtin model needs them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from verl_core.batch import Batch
from verl_core.config.errors import UserError
from verl_core.data.builtin import builtin_demonstrations
from verl_core.data.dataset import check_template


def load_demonstrations(path: str, n: int, seed: int) -> list[tuple[str, str]]:
    """`n` (question, answer) pairs of `builtin:NAME/PART`. Raises UserError for an unknown name or part."""
    return builtin_demonstrations(path, n, seed)


class DemonstrationSource:
    """Seeded batches of demonstrations. A batch depends on (seed, step) alone, so there is no state to save.

    The question goes through the chat template as a prompt does in RL; the answer's ids follow it as sampled ids would,
    so no template can change, strip or re-merge the answer's text.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], tokenizer: Any, batch_size: int, seed: int):
        check_template(tokenizer)
        if tokenizer.eos_token_id is None:
            raise UserError(f"tokenizer {tokenizer.name_or_path!r} has no end-of-sequence token", hint="set eos_token")
        self.batch_size, self.seed = batch_size, seed
        conversations = [[{"role": "user", "content": question}] for question, _ in pairs]
        prompts = tokenizer.apply_chat_template(conversations, add_generation_prompt=True, tokenize=False)
        encode = lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"]  # noqa: E731
        self._prompts = encode(prompts)
        self._answers = [[*ids, tokenizer.eos_token_id] for ids in encode([answer for _, answer in pairs])]

    def batch(self, step: int) -> Batch:
        """The `step`-th batch of `batch_size` sequences.

        Columns: ids_N int64; mask_N bool, true on the answer from its first token to the end-of-sequence id.
        """
        rng = random.Random(f"rlx/demonstrations/{self.seed}/{step}")
        chosen = [rng.randrange(len(self._prompts)) for _ in range(self.batch_size)]
        ids = [self._prompts[i] + self._answers[i] for i in chosen]
        mask = [[False] * len(self._prompts[i]) + [True] * len(self._answers[i]) for i in chosen]
        return Batch(
            length_S=torch.tensor([len(x) for x in ids]),
            group_S=torch.arange(self.batch_size),
            columns={
                "ids_N": torch.tensor([x for row in ids for x in row], dtype=torch.int64),
                "mask_N": torch.tensor([m for row in mask for m in row], dtype=torch.bool),
            },
        )
