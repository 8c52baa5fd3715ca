"""The order in which prompts are trained on: endless over epochs, and resumable at any batch."""

from __future__ import annotations

import random
from typing import Any

from verl_core.config.errors import UserError
from verl_core.data.dataset import PromptDataset, PromptRow


class PromptLoader:
    """Batches of `batch_size` prompts, for ever.

    With `shuffle` each epoch has its own order, keyed by (seed, epoch); without it the order is the files'. The rest
    of an epoch that does not fill a batch is dropped, as veRL does. `epoch` is that of the next batch, from 0.
    Raises UserError when there are fewer prompts than a batch needs.
    """

    def __init__(self, dataset: PromptDataset, batch_size: int, seed: int, shuffle: bool):
        if not 1 <= batch_size <= len(dataset):
            raise UserError(
                f"a batch of {batch_size} prompts cannot be made of {len(dataset)}",
                hint=f"set data.train_batch_size to 1..{len(dataset)}, or give more training files",
            )
        self.dataset, self.batch_size, self.seed, self.shuffle = dataset, batch_size, seed, shuffle
        self.epoch = 0
        self._position = 0  # prompts of this epoch already handed out
        self._order = self._order_of(0)

    @property
    def steps_per_epoch(self) -> int:
        return len(self.dataset) // self.batch_size

    def next(self) -> list[PromptRow]:
        """The next batch; each row's uid is `<epoch>-<index>`."""
        rows = self.dataset.take(self._order[self._position : self._position + self.batch_size], self.epoch)
        self._move_to(self.epoch, self._position + len(rows))
        return rows

    def state(self) -> dict[str, Any]:
        """JSON: the place in the stream and what the stream is made of."""
        return {"epoch": self.epoch, "position": self._position, **self._identity()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken; another batch size continues at the same prompt.

        Raises UserError when data, seed or shuffle differ: the place would be one in another stream.
        """
        changed = [f"{key} was {state[key]}, is {now}" for key, now in self._identity().items() if state[key] != now]
        if changed:
            raise UserError(
                f"the training prompts are not those of the checkpoint: {'; '.join(changed)}",
                hint="restore data.train_files, data.seed and data.shuffle, or start a new run from the merged model",
            )
        self._move_to(state["epoch"], state["position"])

    def _identity(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset.content_hash(),
            "rows": len(self.dataset),
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def _move_to(self, epoch: int, position: int) -> None:
        if len(self.dataset) - position < self.batch_size:
            epoch, position = epoch + 1, 0
        if epoch != self.epoch:
            self._order = self._order_of(epoch)
        self.epoch, self._position = epoch, position

    def _order_of(self, epoch: int) -> list[int]:
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(f"rlx/data-order/{self.seed}/{epoch}").shuffle(order)
        return order
