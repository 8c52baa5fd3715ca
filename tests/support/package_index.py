"""A small package index on this machine, with tiny packages made here, and an rlx whose lock is made from it."""

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rlx.env import uv
from tests.conftest import ROOT, command_variables

BACKEND = """
import pathlib, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as out:
        for member, text in {files!r}.items():
            out.writestr(member, text)
    return name
"""


def wheel_files(name: str, body: str, version: str = "1.0", needs: Sequence[str] = ()) -> dict[str, str]:
    """Member -> text of a pure wheel with one module; `needs` are lines of its metadata."""
    info = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *needs]
    files = {
        f"{name}.py": body,
        f"{info}/METADATA": "\n".join([*metadata, ""]),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{member},{_record_hash(text)},{len(text)}" for member, text in files.items()]
    return {**files, f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"}


def _record_hash(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def wheel(
    name: str, body: str, tag: str = "py3-none-any", version: str = "1.0", needs: Sequence[str] = ()
) -> tuple[str, bytes]:
    """(file name, content)."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as out:
        for member, text in wheel_files(name, body, version, needs).items():
            out.writestr(zipfile.ZipInfo(member), text)
    return f"{name}-{version}-{tag}.whl", content.getvalue()


def source(name: str, body: str) -> tuple[str, bytes]:
    """A source distribution that brings its own build back end, so that building it fetches nothing."""
    files = {
        "pyproject.toml": f'[project]\nname = "{name}"\nversion = "1.0"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(name=name, files=wheel_files(name, body)),
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: 1.0\n",
    }
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as out:
        for member, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{member}")
            entry.size = len(text.encode())
            out.addfile(entry, io.BytesIO(text.encode()))
    return f"{name}-1.0.tar.gz", content.getvalue()


class Index:
    """A PEP 691 index. `requests` lists (file name, Range header) of the files asked for; `changed` replaces what is
    sent of a file, and a file in `cut` ends after so many bytes, once. `go_on` cleared: files stop halfway and wait."""

    def __init__(self, files: Mapping[str, bytes]):
        self.files = dict(files)
        self._thread: threading.Thread | None = None
        self._port = 0
        self.open()
        self._port = self._server.server_port
        self.url = f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        """Serve, with nothing asked for or changed yet; always on the same port, which a lock has written down."""
        self.close()
        self.requests: list[tuple[str, str | None]] = []
        self.changed: dict[str, bytes] = {}
        self.cut: dict[str, int] = {}
        self.go_on = threading.Event()
        self.go_on.set()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index._answer(self)

            do_HEAD = do_GET  # uv asks first whether it may read a part

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        """Nobody listens any more. Safe to call twice."""
        if self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._thread = None

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        kind, name = request.path.strip("/").split("/")[:2]
        if kind == "simple":
            self._listing(request, name)
        elif name in self.files:
            self._file(request, name)
        else:
            request.send_error(404)

    def _listing(self, request: BaseHTTPRequestHandler, project: str) -> None:
        files = [
            {
                "filename": name,
                "url": f"{self.url}/files/{name}",
                "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
                "size": len(content),
            }
            for name, content in self.files.items()
            if name.split("-")[0].replace("_", "-") == project
        ]
        text = json.dumps({"meta": {"api-version": "1.1"}, "name": project, "files": files}).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)

    def _file(self, request: BaseHTTPRequestHandler, name: str) -> None:
        content, wanted = self.changed.get(name, self.files[name]), request.headers.get("Range")
        if request.command == "GET":
            self.requests.append((name, wanted))
        first = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        request.send_response(206 if wanted else 200)
        request.send_header("Content-Length", str(len(content) - first))
        request.end_headers()
        if request.command == "GET":
            rest = content[first : self.cut.pop(name, None)]
            request.wfile.write(rest[: len(rest) // 2])
            self.go_on.wait(30)
            request.wfile.write(rest[len(rest) // 2 :])


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[Index]:
    index = Index(files)
    try:
        yield index
    finally:
        index.close()


def small_rlx(folder: Path, index_url: str, extras: Mapping[str, list[str]]) -> Path:
    """A copy of rlx's source in `folder` whose extras are these, locked from the index."""
    for name in ("cli", "verl_core", "profiles", "templates"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    lines = "\n".join(f"{name} = {json.dumps(packages)}" for name, packages in extras.items())
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "rlx"\nversion = "0.1.0"\nrequires-python = ">=3.12"\n'
        f'dependencies = ["uv>=0.8"]\n[project.optional-dependencies]\n{lines}\n'
        f'[[tool.uv.index]]\nurl = "{index_url}/simple"\ndefault = true\n'
    )
    lock(folder)
    return folder


def lock(folder: Path) -> None:
    command = [uv.find(), "lock", "-q", "--python", sys.executable, "--project", str(folder)]
    environ = {**os.environ, "UV_CACHE_DIR": str(folder / ".uv-cache")}
    subprocess.run(command, env=environ, check=True)


def run_rlx(
    source_tree: Path, cwd: Path, *words: str, env: Mapping[str, str | None] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command of that copy."""
    variables = command_variables({"RLX_PYTHON": None, **(env or {})}, (source_tree / "cli", source_tree))
    return subprocess.run(
        [sys.executable, "-m", "rlx", *words], cwd=cwd, env=variables, capture_output=True, text=True, check=False
    )
