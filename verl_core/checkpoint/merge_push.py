"""A merged folder on the Hugging Face hub, as one commit. `HF_ENDPOINT`, `HF_TOKEN` or the login of `hf`, and
`HF_HUB_OFFLINE` are obeyed, as by every program of the hub's client."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import disable_progress_bars, validate_repo_id

from verl_core.checkpoint.merge_card import CARD, Origin, hub_name, is_generated, write_card
from verl_core.config.errors import EnvError, RlxError, RunError, UserError

BRANCH = constants.DEFAULT_REVISION
MODEL_FILES = (
    "model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json",
    "adapter_model.safetensors", "adapter_config.json",
)  # fmt: skip
"""What a merge may write of a model. Of an earlier push such a file would be loaded in the place of the new ones."""
_NEW_TOKEN = f"make a token that may write at {constants.ENDPOINT}/settings/tokens, then hf auth login"


@dataclass(frozen=True)
class PushTarget:
    """Where on the hub: `[NAMESPACE/]NAME`, a branch, and who may see it."""

    repo: str
    revision: str = BRANCH
    private: bool | None = None
    """Of a repository that is made by the push; None: as the hub does it. One that is there must agree."""

    def __str__(self) -> str:
        return f"{self.repo}, branch {self.revision}"

    def report(self) -> dict[str, str]:
        return {"repo": self.repo, "revision": self.revision}


def check_push(to: PushTarget) -> PushTarget:
    """The target with the namespace it may lack, the user's. Nothing is written.

    Raises UserError for a name that is none, for no token or one that may not write there, and for a repository that
    others can see and should not, or the other way round; EnvError when the hub cannot be reached.
    """
    try:
        validate_repo_id(to.repo)
    except HFValidationError as error:
        raise UserError(f"--push {to.repo} names no repository: {error}", "write it as NAMESPACE/NAME") from error
    if constants.HF_HUB_OFFLINE:
        raise UserError("--push needs the hub, and HF_HUB_OFFLINE is set", "unset it, or leave --push out")
    if get_token() is None:
        raise UserError("--push needs a token of the hub", "hf auth login, or set HF_TOKEN")
    api = HfApi()
    with _told(to, EnvError, "nothing was written"):
        me = api.whoami()
        to = to if "/" in to.repo else replace(to, repo=f"{me['name']}/{to.repo}")
        _require_writer(me, to.repo)
        try:
            info = api.repo_info(to.repo)
        except RepositoryNotFoundError:
            return to  # it will be made
        _require_visibility(to, bool(info.private))
        api.auth_check(to.repo, write=True)
    return to


def push(folder: Path, to: PushTarget, origin: Origin) -> dict[str, str]:
    """Uploads the files of `folder`, hidden ones left out, in one commit, which also takes away the model that was in
    the branch. What the hub has already is not sent again. A folder without a card gets one, which names the base if
    everybody can see it on the hub; a card that rlx wrote takes no other's place there. Repository and branch are made
    where they are absent.

    Returns repo, revision, commit and url. Raises RunError; `folder` stays, and the branch is as it was.
    """
    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi()
    told = partial(_told, to, RunError, f"{folder} is whole; push it with: {_again(folder, to)}")
    with told():
        named = hub_name(origin.base)
        base = named if named and _is_public(api, named) else None
    try:
        write_card(folder, to.repo.rpartition("/")[2], replace(origin, base=base))
    except OSError as error:
        raise RunError(
            f"cannot write {folder / CARD}: {error.strerror}", "free some space, or write a card there"
        ) from error
    with told():
        api.create_repo(to.repo, private=to.private, exist_ok=True)
        _require_visibility(to, bool(api.repo_info(to.repo).private))
        if to.revision != BRANCH and not to.revision.startswith("refs/"):  # the refs of pull requests are there
            api.create_branch(to.repo, branch=to.revision, exist_ok=True)
        there = set(api.list_repo_files(to.repo, revision=to.revision))
        files = {path.relative_to(folder).as_posix(): path for path in _visible(folder)}
        if CARD in files and CARD in there and is_generated(files[CARD]) and not _has_generated_card(api, to):
            del files[CARD]
        stale = {name for name in there - files.keys() if any(fnmatch(name, kind) for kind in MODEL_FILES)}
        added = [CommitOperationAdd(name, path) for name, path in sorted(files.items())]
        deleted = [CommitOperationDelete(name) for name in sorted(stale)]
        # not upload_folder, which may make several commits: a reader between two would load half a model
        done = api.create_commit(to.repo, [*added, *deleted], commit_message=_message(origin), revision=to.revision)
    return to.report() | {"commit": done.oid, "url": done.commit_url}


def _is_public(api: HfApi, model: str) -> bool:
    try:
        return not api.repo_info(model).private
    except HfHubHTTPError:  # not there, or not for this token
        return False


def _message(origin: Origin) -> str:
    return "rlx merge" if origin.step is None else f"rlx merge: step {origin.step}"


def _visible(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _has_generated_card(api: HfApi, to: PushTarget) -> bool:
    with tempfile.TemporaryDirectory() as place:
        return is_generated(Path(api.hf_hub_download(to.repo, CARD, revision=to.revision, local_dir=place)))


def _require_writer(me: Mapping[str, Any], repo: str) -> None:
    """Raises UserError where `whoami` says that the token cannot write; what it leaves open the hub decides."""
    token = me.get("auth", {}).get("accessToken", {})
    scopes = token.get("fineGrained", {}).get("scoped", [])
    may_not = token.get("role") == "read"
    if token.get("role") == "fineGrained":
        may_not = not any("repo.write" in scope.get("permissions", []) for scope in scopes)
    if may_not:
        raise UserError(f"the token of {me['name']} may only read", _NEW_TOKEN)
    namespace = repo.partition("/")[0]
    known = {me["name"], *(organisation["name"] for organisation in me.get("orgs", []))}
    if namespace not in known:
        raise UserError(
            f"--push {repo}: {me['name']} is not in the organisation {namespace}",
            f"push to one of {', '.join(sorted(known))}",
        )


def _require_visibility(to: PushTarget, private: bool) -> None:
    if to.private is not None and to.private != private:
        is_now, asked = ("private", "--public") if private else ("public", "--private")
        raise UserError(
            f"{to.repo} is there and {is_now}, which {asked} does not change",
            f"leave {asked} out, push to another repository, or change it at {constants.ENDPOINT}/{to.repo}/settings",
        )


def _again(folder: Path, to: PushTarget) -> str:
    words = ["rlx", "merge", str(folder), "--push", to.repo]
    if to.revision != BRANCH:
        words += ["--revision", to.revision]
    if to.private is not None:
        words.append("--private" if to.private else "--public")
    return shlex.join(words)


@contextmanager
def _told(to: PushTarget, kind: type[RlxError], hint: str) -> Iterator[None]:
    """What goes wrong with the hub, in one line."""
    try:
        yield
    except RlxError:
        raise
    except Exception as error:  # the client, its HTTP library and its uploader have errors of their own
        status = _status(error)
        refusals = {
            401: (f"{constants.ENDPOINT} does not take the token (401)", "hf auth login, or correct HF_TOKEN"),
            403: (f"the token may not write to {to} (403): {_line(error)}", _NEW_TOKEN),
            404: (
                f"{constants.ENDPOINT} has no {to}, or hides it from this token (404)",
                "check the name and the token",
            ),
        }
        if status not in refusals:
            code = f" ({status})" if status else ""
            raise kind(f"{constants.ENDPOINT} does not answer as it should{code}: {_line(error)}", hint) from error
        message, first = refusals[status]
        if kind is EnvError:  # the token is the user's affair
            raise UserError(message, first) from error
        raise kind(message, f"{first}; {hint}") from error


def _status(error: BaseException | None) -> int | None:
    """Of the answer that led to an error; None where there was none."""
    while error is not None and not isinstance(error, HfHubHTTPError):
        error = error.__cause__
    return error.response.status_code if error is not None and error.response is not None else None


def _line(error: BaseException) -> str:
    """The last line that a person wrote into an error, which is where the hub's own words stand."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
