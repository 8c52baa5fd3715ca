"""The order in which prompts are trained on: endless over epochs, and resumable at any batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from verl_core.batch import Trajectory
from verl_core.config.errors import UserError
from verl_core.config.schema import DataConfig
from verl_core.data.curriculum import Curriculum, Graded, Visit, user_curriculum
from verl_core.data.dataset import PromptDataset, PromptRow
from verl_core.data.interleave import Turns
from verl_core.data.stream import Stream


class PromptLoader:
    """Batches of data.train_batch_size prompts, for ever.

    With data.shuffle each epoch has its own order, keyed by (seed, epoch); without it the order is the files'. The rest
    of an epoch that does not fill a batch is dropped, as veRL does. The sources of a mixture take turns by weight, each
    with epochs of its own, and nothing is dropped; nor is it from a curriculum's order. `epoch` is that of the next
    batch, from 0; of a mixture it counts as many prompts as there are.

    It is the controller's: nothing in it depends on ranks, engines or scorers. Raises UserError when there are fewer
    prompts than a batch needs.
    """

    def __init__(self, dataset: PromptDataset, cfg: DataConfig, seed: int):
        if not 1 <= cfg.train_batch_size <= len(dataset):
            raise UserError(
                f"a batch of {cfg.train_batch_size} prompts cannot be made of {len(dataset)}",
                hint=f"set data.train_batch_size to 1..{len(dataset)}, or give more training files",
            )
        self.dataset, self.cfg, self.seed = dataset, cfg, seed
        self._streams = [Stream(part, seed, cfg.shuffle) for part in dataset.parts]
        for stream in self._streams:
            stream.curriculum = self._curriculum(stream)
        self._turns = Turns([part.weight for part in dataset.parts])
        self._drops_rest = len(self._streams) == 1 and self._streams[0].curriculum is None

    @property
    def steps_per_epoch(self) -> int:
        return len(self.dataset) // self.cfg.train_batch_size

    @property
    def epoch(self) -> int:
        if len(self._streams) == 1:
            return self._streams[0].epoch
        return sum(stream.drawn for stream in self._streams) // len(self.dataset)

    def next(self) -> list[PromptRow]:
        """The next batch; each row's uid is `<epoch>-<index>`, in a mixture `<source>/<epoch>-<index>`."""
        places = [self._draw() for _ in range(self.cfg.train_batch_size)]
        self._drop_rest()
        return self.dataset.take([position for position, _ in places], [epoch for _, epoch in places])

    def update(self, step: int, groups: Iterable[Sequence[Trajectory]]) -> None:
        """Tells the curricula how the prompts of a step were answered. Answers that nobody scored say nothing."""
        if not any(stream.curriculum for stream in self._streams):
            return
        heard = [found for group in groups if (found := self._visit(group))]
        for stream in self._streams:
            visits = [visit for whose, visit in heard if whose is stream]
            if visits and stream.curriculum is not None:
                stream.curriculum.update(step, visits)

    def metrics(self) -> dict[str, int]:
        """Of a mixture the sources' epochs; of a curriculum how many prompts this epoch has."""
        named = [(stream, f"/{stream.part.name}" if stream.part.name else "") for stream in self._streams]
        epochs = {f"training/epoch{name}": stream.epoch for stream, name in named if name}
        left = {f"training/curriculum_prompts{name}": len(stream.order) for stream, name in named if stream.curriculum}
        return epochs | left

    def state(self) -> dict[str, Any]:
        """JSON: the place in the stream and what the stream is made of."""
        return {"streams": [stream.state() for stream in self._streams], **self._identity()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken; another batch size continues at the same prompt.

        Raises UserError when data, seed, shuffle, weights or curriculum differ: the place would be one in another
        stream.
        """
        now, then = self._identity(), {key: value for key, value in state.items() if key != "streams"}
        changed = [
            f"{key} was {then.get(key)}, is {now.get(key)}"
            for key in dict.fromkeys([*now, *then])
            if now.get(key) != then.get(key)
        ]
        if changed:
            raise UserError(
                f"the training prompts are not those of the checkpoint: {'; '.join(changed)}",
                hint="restore data.train_files, data.mixture, data.curriculum, data.seed and data.shuffle, or start a "
                "new run from the merged model",
            )
        for stream, place in zip(self._streams, state["streams"], strict=True):
            stream.load_state(place)
        self._drop_rest()

    def _draw(self) -> tuple[int, int]:
        return self._streams[self._turns.next([stream.drawn for stream in self._streams])].draw()

    def _drop_rest(self) -> None:
        if self._drops_rest:
            self._streams[0].end_epoch(self.cfg.train_batch_size)

    def _curriculum(self, stream: Stream) -> Curriculum | None:
        asked, positions = self.cfg.curriculum, stream.part.positions
        if asked.path:
            return user_curriculum(asked, [self.dataset.raw(p) for p in positions], self.seed)
        if asked.by is None and not asked.drop_solved:
            return None
        difficulty = None if asked.by is None else [self.dataset.difficulty(p) for p in positions]
        return Graded(stream.plain, difficulty, asked.drop_solved)

    def _visit(self, group: Sequence[Trajectory]) -> tuple[Stream, Visit] | None:
        """Whose prompt it was, and how it was answered; None where nobody scored the answers."""
        scored = [t for t in group if "acc" in t.meta]
        if not scored:
            return None
        position = self.dataset.position_of(scored[0].group)
        stream = next(stream for stream in self._streams if position in stream.part.positions)
        accs = [t.meta["acc"] for t in scored]
        acc = None if None in accs else fmean(accs)
        place = stream.part.positions.index(position)
        return stream, Visit(place, fmean(t.reward for t in scored), acc, len(scored))

    def _identity(self) -> dict[str, Any]:
        asked = self.cfg.curriculum
        return {
            "dataset": self.dataset.content_hash(),
            "rows": len(self.dataset),
            "seed": self.seed,
            "shuffle": self.cfg.shuffle,
            **{f"the weight of {part.name}": part.weight for part in self.dataset.parts if part.name},
            **({"the curriculum": asdict(asked)} if asked.path or asked.by or asked.drop_solved else {}),
        }
