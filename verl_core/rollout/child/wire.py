"""Messages between an engine's process and its parent: a JSON head and named flat arrays, nothing pickled.

4 bytes: length of the head | head | the arrays' bytes one after the other
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]


class Wire:
    """One end of the connection. `send` may be called by any thread, `receive` by one."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, head: Mapping[str, Any], arrays: Arrays | None = None) -> None:
        """Raises TypeError where the head is not JSON, OSError where the other end is gone."""
        arrays = arrays or {}
        layout = [(name, a.dtype.str, a.shape[0]) for name, a in arrays.items()]
        text = json.dumps({**head, "arrays": layout}).encode()
        message = b"".join([len(text).to_bytes(4, "little"), text, *(a.tobytes() for a in arrays.values())])
        with self._sending:
            self._connection.send_bytes(message)

    def receive(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The next message. Raises EOFError or OSError where the other end is gone."""
        message = self._connection.recv_bytes()
        start = 4 + int.from_bytes(message[:4], "little")
        head = json.loads(message[4:start])
        arrays = {}
        for name, kind, count in head.pop("arrays"):
            arrays[name] = np.frombuffer(message, kind, count, start)
            start += arrays[name].nbytes
        return head, arrays

    def wait(self, seconds: float) -> bool:
        """Whether something can be received, or the other end is gone, before `seconds` are over."""
        return self._connection.poll(seconds)

    def close(self) -> None:
        self._connection.close()
