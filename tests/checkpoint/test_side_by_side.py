"""Threads that read files end when the process is asked to, not at the end of their files."""

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from verl_core.checkpoint.side_by_side import side_by_side


def read_slowly(name: str, go_on: Callable[[], None]) -> str:
    for _ in range(3000):
        go_on()
        time.sleep(0.01)
    return name


def test_results_in_the_order_of_the_items():
    assert side_by_side(lambda item, go_on: item * 2, [3, 1, 2], threads=2) == [6, 2, 4]


def test_an_interrupt_ends_them_at_their_next_block():
    began = time.monotonic()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        side_by_side(read_slowly, "abcdef", threads=2)
    assert time.monotonic() - began < 10


def test_the_failure_of_one_ends_the_others():
    def work(name: str, go_on: Callable[[], None]) -> str:
        if name == "a":
            raise OSError("lost")
        return read_slowly(name, go_on)

    began = time.monotonic()
    with pytest.raises(OSError, match="lost"):
        side_by_side(work, "abc", threads=2)
    assert time.monotonic() - began < 10
