"""What answers that look as if they hung may take from the others, from what became of those before."""

from __future__ import annotations

MOST = 32  # processes beyond reward.num_workers
SHARE = 0.05  # of the processor time of the answers that got a verdict


class Suspects:
    """An answer that looks as if it hung may just be slow. As long as few of them turn out to hang, they run as others
    do; where many do, what they take is bounded by a share of what the others take."""

    def __init__(self, workers: int, timeout_s: float):
        self._workers, self._timeout_s = workers, timeout_s
        self.at_once = workers
        """How many there may be."""
        self.credit = timeout_s
        """Processor time that they may take from others, seconds."""

    def verdict(self, processor_s: float, suspected: bool) -> None:
        """An answer got its verdict: a suspected one was innocent, so what it took does not count."""
        if suspected:
            self.at_once = max(self._workers, self.at_once // 2)
        self.credit = min(self._timeout_s, self.credit + processor_s * (1.0 if suspected else SHARE))

    def hung(self) -> None:
        """An answer reached a limit, and not because others had the processor."""
        self.at_once = max(self._workers, min(MOST, 2 * self.at_once))
