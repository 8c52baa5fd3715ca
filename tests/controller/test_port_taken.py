"""The port at which ranks meet is free when it is chosen; another process may get it before they meet."""

import socket

import pytest

from tests.controller.controller_tiny import tiny_config
from verl_core.config.errors import MachineError
from verl_core.controller.worker import Worker


def test_a_port_that_was_taken_meanwhile_is_a_line_and_a_hint(tmp_path):
    rank = Worker(0, 2, tiny_config("smoke"), ("actor",), str(tmp_path))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        master = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(MachineError, match=f"rank 0 .*at {master}: another process has taken that port") as taken:
            rank.start(master)
    assert taken.value.hint == "start again: a free port is chosen each time"
