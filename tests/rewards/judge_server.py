"""A local server that plays a judge's endpoint, well or badly, for the tests of the judge."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Play = Callable[["Handler", dict[str, Any]], None]


def nonce_of(prompt: str) -> str:
    """What a judge is told to begin its last line with: behind everything that is quoted."""
    return re.findall(r"the word (VERDICT-[0-9a-f]{16}), a colon", prompt)[-1]


def answer_of(prompt: str) -> str:
    """The answer that a prompt quotes, as a careful judge finds it."""
    fence = re.search(r"begin with (==[0-9a-f]{16}==)\.", prompt)[1]
    return prompt.split(f"{fence} answer begins\n")[1].split(f"\n{fence} answer ends")[0]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.keys.append(self.headers.get("Authorization"))
            self.server.at_once += 1
            self.server.most = max(self.server.most, self.server.at_once)
        try:
            self.server.play(self, body)
        except OSError:  # whoever asked has gone
            self.close_connection = True
        finally:
            with self.server.lock:
                self.server.at_once -= 1

    def reply(self, text: Any, finish: str = "stop") -> None:
        message = {"role": "assistant", "content": text}
        self.send(json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": finish}]}).encode())

    def send(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def reset(self) -> None:
        """Drops the connection as a server that dies does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
        raise ConnectionResetError

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, play: Play):
        super().__init__(("127.0.0.1", 0), Handler)
        self.play, self.lock = play, threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.at_once = self.most = 0
        self.over = threading.Event()  # for plays that hang

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, *_: Any) -> None:
        """Connections that were given up are part of the play."""


@contextmanager
def served(play: Play) -> Iterator[Server]:
    server = Server(play)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def verdict(handler: Handler, body: dict[str, Any], word: str = "7", before: str = "It is mostly right.") -> None:
    """What a good judge does."""
    prompt = body["messages"][0]["content"]
    handler.reply(f"{before}\n{nonce_of(prompt)}: {word}")
