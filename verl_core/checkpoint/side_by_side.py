"""Work on many files in threads, which a Ctrl-C or the failure of one ends within a block of what they read."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Event


class Ended(Exception):
    """What the threads that are left end with; nobody sees it."""


def side_by_side[Item, Result](
    work: Callable[[Item, Callable[[], None]], Result], items: Iterable[Item], threads: int
) -> list[Result]:
    """`work(item, go_on)` of each, in the order of the items. `work` calls `go_on` at every block: it raises `Ended`
    when the process has been asked to end, or the work of an earlier item has failed, whose exception is raised here.
    """
    ended = Event()

    def go_on() -> None:
        if ended.is_set():
            raise Ended

    with ThreadPoolExecutor(threads) as pool:
        try:
            return list(pool.map(lambda item: work(item, go_on), items))
        except BaseException:
            ended.set()  # before the pool waits for its threads
            raise
