"""A hub on this machine: as much of the Hugging Face hub's API as a push uses. Files come by LFS or by Xet
(`xet_stub.py`), as the client chooses; content that has not the announced SHA-256 is refused.
https://huggingface.co/docs/hub/api, https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md
"""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from xet_stub import Cas

TOKEN = "hf_stub_writer"


@dataclass
class Repo:
    """Branch -> path -> content. A commit is the tuple of branch, message and the paths it touched."""

    private: bool = False
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {".gitattributes": b""}})
    commits: list[tuple[str, str, list[str]]] = field(default_factory=list)


class Hub:
    """What the server knows, for tests to set and to look at."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        """Contents by SHA-256, committed or not."""
        self.cas = Cas(self.keep)
        self.user = {"name": "me", "orgs": [{"name": "team"}], "auth": {"accessToken": {"role": "write"}}}
        self.seen: list[str] = []
        """`METHOD path` of every request."""
        self.refuses: dict[str, int] = {}
        """Status to answer with, by a part of `METHOD path`; 0: the connection is cut."""
        self.address = ""

    def files(self, repo: str, branch: str = "main") -> dict[str, bytes]:
        return self.repos[repo].branches[branch]

    def keep(self, sha256: str, content: bytes) -> bool:
        """Takes a large file; false when it is another one than was announced."""
        if hashlib.sha256(content).hexdigest() != sha256:
            return False
        self.large[sha256] = content
        return True


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub at `hub.address`, until the context ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, text: str, code: str | None = None, **fields: str):
        super().__init__(text)
        self.status, self.code, self.fields = status, code, fields


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def _answer(self) -> None:
        asked = f"{self.command} {unquote(urlsplit(self.path).path)}"
        self.hub.seen.append(asked)
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status = next((status for part, status in self.hub.refuses.items() if part in asked), 200)
        if status == 0:
            self.close_connection = True
            self.connection.close()
            return
        try:
            if status != 200:
                raise _Refused(status, "as the test asked")
            if self.headers.get("Authorization") != f"Bearer {TOKEN}" and "/lfs/" not in asked:
                raise _Refused(401, "Invalid credentials")
            self._send(200, self._route(asked, content))
        except _Refused as refused:
            headers = {"X-Error-Code": refused.code} if refused.code else {}
            headers["X-Error-Message"] = str(refused)
            self._send(refused.status, {"error": str(refused), **refused.fields}, **headers)

    def _route(self, asked: str, content: bytes) -> Any:
        method, _, path = asked.partition(" ")
        if path.startswith("/cas/"):
            return self._store(path.removeprefix("/cas"), content)
        if path == "/api/whoami-v2":
            return self.hub.user
        if path == "/api/repos/create":
            return self._create(json.loads(content))
        if path == "/api/validate-yaml":
            return self._validate(json.loads(content)["content"])
        if path.startswith("/lfs/") and method == "PUT":
            if not self.hub.keep(path.removeprefix("/lfs/"), content):
                raise _Refused(400, "the content has another SHA-256")
            return {}
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._batch(json.loads(content)["objects"])
        if "/resolve/" in path:
            name, _, rest = path[1:].partition("/resolve/")
            branch, _, file = rest.partition("/")
            return self._branch(name, branch)[file]
        return self._of_repo(path.removeprefix("/api/models/").split("/"), content)

    def _of_repo(self, parts: list[str], content: bytes) -> Any:
        name, rest = "/".join(parts[:2]), parts[2:]
        repo = self._repo(name)
        match rest:
            case [] | ["revision", *_]:
                return {"id": name, "private": repo.private, "sha": self._sha(repo), "siblings": []}
            case ["xet-write-token", *_]:
                return {"casUrl": f"{self.hub.address}/cas", "accessToken": TOKEN, "exp": int(time.time()) + 3600}
            case ["auth-check", "write"]:
                return {}
            case ["branch", *branch]:
                if "/".join(branch) in repo.branches:
                    raise _Refused(409, "the branch exists")
                repo.branches["/".join(branch)] = dict(repo.branches["main"])
                return {}
            case ["tree", *branch]:
                files = self._branch(name, "/".join(branch))
                return [{"type": "file", "path": p, "size": len(c), "oid": _git_oid(c)} for p, c in files.items()]
            case ["preupload", *branch]:
                return {"files": [self._mode(name, "/".join(branch), f) for f in json.loads(content)["files"]]}
            case ["commit", *branch]:
                return self._commit(name, "/".join(branch), [json.loads(line) for line in content.splitlines()])
        raise _Refused(404, "no such route")

    def _repo(self, name: str) -> Repo:
        if name not in self.hub.repos:
            raise _Refused(404, "Repository not found", "RepoNotFound")
        return self.hub.repos[name]

    def _branch(self, name: str, branch: str) -> dict[str, bytes]:
        branches = self._repo(name).branches
        if branch not in branches:
            raise _Refused(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        return branches[branch]

    def _store(self, path: str, content: bytes) -> dict[str, object]:
        try:
            answer = self.hub.cas.take(path, content)
        except ValueError as error:
            raise _Refused(400, str(error)) from error
        if answer is None:  # chunks that others have, and newer ways to upload: the client goes on without
            raise _Refused(404, "not known here")
        return answer

    def _create(self, asked: dict[str, Any]) -> dict[str, str]:
        name = f"{asked.get('organization') or self.hub.user['name']}/{asked['name']}"
        if name in self.hub.repos:
            raise _Refused(409, "You already created this model repo", url=f"{self.hub.address}/{name}")
        self.hub.repos[name] = Repo(private=asked.get("visibility") == "private")
        return {"url": f"{self.hub.address}/{name}", "name": name, "id": name}

    def _validate(self, card: str) -> dict[str, list[Any]]:
        if not isinstance(yaml.safe_load(card.split("---\n")[1]), dict):
            raise _Refused(400, "metadata is no mapping")
        return {"errors": [], "warnings": []}

    def _mode(self, name: str, branch: str, file: dict[str, Any]) -> dict[str, Any]:
        there = self._branch(name, branch).get(file["path"])
        large = file["path"].endswith(".safetensors")
        oid = None if there is None else hashlib.sha256(there).hexdigest() if large else _git_oid(there)
        mode = "lfs" if large else "regular"
        return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid}

    def _batch(self, objects: list[dict[str, Any]]) -> dict[str, Any]:
        """Where to put what is not there."""
        upload = {o["oid"]: {} if o["oid"] in self.hub.large else {"actions": self._put(o["oid"])} for o in objects}
        return {"transfer": "basic", "objects": [{**o, **upload[o["oid"]]} for o in objects]}

    def _put(self, oid: str) -> dict[str, Any]:
        return {"upload": {"href": f"{self.hub.address}/lfs/{oid}"}}

    def _commit(self, name: str, branch: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
        files, touched, summary = dict(self._branch(name, branch)), [], ""
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                summary = value["summary"]
                continue
            touched.append(value["path"])
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                content = self.hub.large.get(value["oid"])
                if content is None or len(content) != value["size"]:
                    raise _Refused(400, f"{value['path']} was not uploaded")
                files[value["path"]] = content
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            else:
                raise _Refused(400, f"unknown operation {line['key']}")
        repo = self._repo(name)
        repo.branches[branch] = files
        repo.commits.append((branch, summary, sorted(touched)))
        sha = self._sha(repo)
        return {"commitUrl": f"{self.hub.address}/{name}/commit/{sha}", "commitOid": sha}

    def _sha(self, repo: Repo) -> str:
        return hashlib.sha1(str(len(repo.commits)).encode()).hexdigest()

    def _send(self, status: int, answer: Any, **headers: str) -> None:
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        if isinstance(answer, bytes):
            headers = {"ETag": f'"{_git_oid(answer)}"', "X-Repo-Commit": "0" * 40}
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), "Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
