"""Fetching from a hub: a local server that answers as the Hugging Face hub does, and the hub's own client."""

import hashlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(published):
    """(address, requests seen) of a hub that has GSM8K, with both of its variants."""
    folder = published("gsm8k")
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}
    seen: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.path)
            if "/resolve/" in self.path:
                content = files[self.path.split(f"/resolve/{COMMIT}/")[1]]
                self._send(content, ETag=f'"{hashlib.sha256(content).hexdigest()}"')
            elif self.path.startswith(f"/api/datasets/openai/gsm8k/tree/{COMMIT}"):
                tree = [{"type": "file", "path": name, "size": len(c), "oid": COMMIT} for name, c in files.items()]
                self._send(json.dumps(tree).encode())
            elif self.path.startswith("/api/datasets/openai/gsm8k"):
                info = {"id": "openai/gsm8k", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
                self._send(json.dumps(info).encode())
            else:
                self.send_error(404)

        do_HEAD = do_GET

        def _send(self, content, **headers):
            self.send_response(200)
            for name, value in {"X-Repo-Commit": COMMIT, "Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_data_set_comes_from_the_hub_once_and_then_from_its_cache(hub, tmp_path, monkeypatch):
    address, seen = hub
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))

    def prepare(out):
        command = [sys.executable, "-m", "verl_core.data.prepare.job", "gsm8k", "--out", str(tmp_path / out), "--json"]
        return subprocess.run(command, capture_output=True, text=True)

    done = prepare("one")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["origin"] == f"hub:openai/gsm8k@{COMMIT}"
    assert [file["name"] for file in told["sources"]] == [f"main/{s}-00000-of-00001.parquet" for s in ("test", "train")]
    assert not any("socratic" in path for path in seen)  # only what is needed is fetched
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = prepare("two")
    assert done.returncode == 0 and json.loads(done.stdout)["files"] == told["files"], done.stderr
