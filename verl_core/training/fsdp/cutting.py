"""A rank's share of a mini-batch as micro-batches, as many on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from verl_core.batch import Batch
from verl_core.batch.packing import cut_further, micro_batches
from verl_core.batch.shared_prompt import group_micro_batches
from verl_core.batch.whole_groups import WholeGroups
from verl_core.training.protocol import MicroBatching


def cut(
    batch: Batch, rule: MicroBatching, ranks: int, whole_groups: bool, most: Callable[[int], int]
) -> list[list[int] | None]:
    """Sequence indices of the micro-batches; None for one that other ranks have and this one has nothing for.

    ranks: so many have the rule together. whole_groups: a micro-batch holds all sequences of a group or none. most:
    from this rank's number of micro-batches to the largest of all ranks; one with fewer cuts its own further. A batch
    with shared_len_S has its groups side by side.
    """
    groups = WholeGroups.of(batch) if whole_groups else None
    if groups:
        cuts = groups.cut(rule.sequences, rule.tokens, ranks)
    elif "shared_len_S" in batch:
        cuts = group_micro_batches(batch, rule.sequences, rule.tokens, ranks)
    else:
        cuts = micro_batches(batch.length_S, rule.sequences, rule.tokens, ranks)
    count = most(len(cuts))
    if len(cuts) < count:
        cuts = cut_further(cuts, groups.tokens if groups else batch.length_S, count)
    indices = [groups.sequences(part) for part in cuts] if groups else cuts
    return [*indices, *[None] * (count - len(indices))]


def with_last[T](items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each item and whether it is the last; the next one is made before an item is given out."""
    iterator = iter(items)
    for item in iterator:
        for following in iterator:
            yield item, False
            item = following
        yield item, True
