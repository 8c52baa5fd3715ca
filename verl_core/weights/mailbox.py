"""Small JSON messages between a sender and its receivers, over a TCPStore that the sender hosts. Waiting is the
store's: nobody polls. The system chooses the port, so that none can be taken."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, TCPStore

from verl_core.config.errors import RunError


class Mailbox:
    """Boxes are queues by name: `post` appends, `read` takes the oldest message and waits for one.

    One thread at a time waits on a mailbox; `twin()` is another connection for another thread.
    """

    def __init__(self, store: Any, timeout_s: float):
        self.store = store  # a TCPStore; torch's type stubs lack half of its methods
        self._timeout_s = timeout_s

    @classmethod
    def host(cls, address: str, timeout_s: float) -> Mailbox:
        """On the sender. `address`: what receivers know this machine by."""
        limit = timedelta(seconds=timeout_s)
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=limit)
        return cls(store, timeout_s)

    @classmethod
    def join(cls, address: str, port: int, timeout_s: float) -> Mailbox:
        """On a receiver. Raises RunError when nobody answers there."""
        limit = timedelta(seconds=timeout_s)
        try:
            store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=limit)
        except DistError as error:
            raise RunError(
                f"no weight sender answers at {address}:{port}", "look at the trainer's log, and at firewalls"
            ) from error
        return cls(store, timeout_s)

    @property
    def port(self) -> int:
        return self.store.port

    def twin(self) -> Mailbox:
        return Mailbox(self.store.clone(), self._timeout_s)

    def post(self, box: str, message: dict[str, Any]) -> None:
        self.store.queue_push(box, json.dumps(message))

    def read(self, box: str) -> dict[str, Any]:
        """Raises RunError when the other side is gone, or silent for the timeout."""
        try:
            return json.loads(self.store.queue_pop(box))
        except DistError as error:
            raise RunError(
                f"a weight transfer stopped: nothing in {box!r} for {self._timeout_s:g} s, or the other side is gone",
                "look at the log of the trainer and of the engine",
            ) from error
