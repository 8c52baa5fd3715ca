"""A server that speaks SandboxFusion's protocol, with a sandbox of ours behind it, and bad days to order."""

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from verl_core.rewards.sandbox.bubblewrap import Bubblewrap
from verl_core.rewards.sandbox.protocol import Limits


class Server(ThreadingHTTPServer):
    """`script`: what the next requests get instead of an outcome: an HTTP status, a body, or seconds to wait before
    the outcome. `seen`: the requests' bodies; `at_once`: the most requests that were open together."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: deque[int | bytes | float] = deque()
        self.seen: list[dict[str, Any]] = []
        self.at_once = self.open = 0
        self.lock = threading.Lock()
        self.sandbox = Bubblewrap()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.seen.append(body)
            self.server.open += 1
            self.server.at_once = max(self.server.at_once, self.server.open)
            order = self.server.script.popleft() if self.server.script else None
        try:
            if isinstance(order, int):
                self.send_error(order)
                return
            if isinstance(order, float):
                time.sleep(order)
            self._send(order if isinstance(order, bytes) else self._outcome(body))
        finally:
            with self.server.lock:
                self.server.open -= 1

    def _outcome(self, body: dict[str, Any]) -> bytes:
        assert self.path == "/run_code" and body["language"] == "python"
        limits = Limits(seconds=body["run_timeout"], memory_mb=body["memory_limit_MB"])
        outcome = self.server.sandbox.run(body["code"], body["stdin"].encode(), limits)
        run = {
            "status": "TimeLimitExceeded" if outcome.status == "timeout" else "Finished",
            "execution_time": outcome.seconds,
            "return_code": outcome.exit_code,
            "stdout": outcome.stdout.decode(errors="replace"),
            "stderr": outcome.stderr,
        }
        status = "Success" if outcome.status == "ok" else "Failed"
        return json.dumps({"status": status, "message": "", "compile_result": None, "run_result": run}).encode()

    def _send(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            self.wfile.write(content)
        except OSError:  # the client has heard enough
            self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
