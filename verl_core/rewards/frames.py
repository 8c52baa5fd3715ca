"""Python values over a socket, each as a frame: its length in 4 bytes, then its pickle. Only between a process and
those that it has started; text of a model is data in a value, never a frame."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<I")
_READ = 1 << 20  # bytes taken from a socket at a time


def packed(value: Any) -> bytes:
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def send(sock: socket.socket, value: Any) -> None:
    """Waits until it is written. Raises OSError when the other side has gone."""
    sock.sendall(packed(value))


def receive(sock: socket.socket) -> Any:
    """Waits for the next value. Raises EOFError when the other side has gone."""
    (size,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    return pickle.loads(_exactly(sock, size))


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = sock.recv(min(size - len(data), _READ))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


class Channel:
    """One side of a socket that never waits: what cannot be written yet is kept, what is half there too."""

    def __init__(self, sock: socket.socket):
        sock.setblocking(False)
        self.sock = sock
        self._out, self._in = bytearray(), bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def unsent(self) -> bool:
        """Whether `flush` has something to do when the socket takes more."""
        return bool(self._out)

    def send(self, value: Any) -> None:
        """Raises OSError when the other side has gone."""
        self._out += packed(value)
        self.flush()

    def flush(self) -> None:
        try:
            while self._out:
                del self._out[: self.sock.send(memoryview(self._out)[:_READ])]
        except BlockingIOError:
            pass

    def read(self) -> tuple[list[Any], bool]:
        """The values that are there, and whether the other side has gone."""
        gone = False
        try:
            more = self.sock.recv(_READ)
            gone = not more
            self._in += more
        except BlockingIOError:
            pass
        except OSError:
            gone = True
        return self._values(), gone

    def close(self) -> None:
        self.sock.close()

    def _values(self) -> list[Any]:
        values, at = [], 0
        while len(self._in) >= at + _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._in, at)
            end = at + _LENGTH.size + size
            if len(self._in) < end:
                break
            values.append(pickle.loads(memoryview(self._in)[at + _LENGTH.size : end]))
            at = end
        del self._in[:at]
        return values
