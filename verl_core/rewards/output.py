"""What a rule prints goes to stderr, up to a limit an answer: a rule that prints a gigabyte must not bury the log."""

import io
import sys
from contextlib import suppress
from typing import TextIO

LIMIT = 4096  # characters an answer


class Bounded(io.TextIOBase):
    """Passes the first LIMIT characters since `reset` on to `target`, then one line that says so, then nothing."""

    def __init__(self, target: TextIO):
        self._target = target
        self._left = LIMIT

    def reset(self) -> None:
        """A new answer begins."""
        self._left = LIMIT

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._left > 0:
            with suppress(OSError):  # a full disk or a reader that has gone costs no answer its reward
                self._target.write(text[: self._left])
                if len(text) > self._left:
                    self._target.write("\n[the rest of what the reward printed for this answer is left out]\n")
            self._left -= len(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._target.flush()


def bound_output() -> Bounded:
    """Replaces this process's stdout and stderr (of Python code; a child process writes where it likes)."""
    bounded = Bounded(sys.stderr)
    sys.stdout = sys.stderr = bounded  # type: ignore[assignment]
    return bounded
