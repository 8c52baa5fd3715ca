"""What object stores and the libraries that reach them raise, in a line with a hint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from verl_core.config.errors import EnvError, RlxError, RunError, UserError
from verl_core.config.urls import url_extras

_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; GOOGLE_APPLICATION_CREDENTIALS for gs://"
)


@contextmanager
def worded(url: str, writing: bool = False) -> Iterator[None]:
    """Around calls of fsspec for the object at `url`. rlx's own errors pass, and FileNotFoundError of what is read; all
    else becomes RunError, or EnvError where a package is missing."""
    try:
        yield
    except RlxError:
        raise
    except FileNotFoundError as error:
        if writing:
            raise no_bucket(url) from error
        raise
    except ImportError as error:
        raise _no_package(url, error) from error
    except Exception as error:  # each library has classes of its own
        raise _failure(url, error) from error


@contextmanager
def before_the_start() -> Iterator[None]:
    """Around a first look at a store: what it refuses then, the command or the surroundings have wrong."""
    try:
        yield
    except RunError as error:
        raise UserError(error.message, error.hint) from error


def no_bucket(url: str) -> RunError:
    """The error for a bucket that is not there."""
    bucket = "/".join(url.split("/")[:3])
    return RunError(f"there is no {bucket}", "correct the URL (trainer.checkpoint_url of a run), or make the bucket")


def _no_package(url: str, error: ImportError) -> EnvError:
    extras = sorted(url_extras(url))
    hint = f"`rlx env sync --extra fsdp --extra {extras[0]}`" if extras else "name an interpreter with it by RLX_PYTHON"
    return EnvError(f"{url} needs a package that is not here: {_first_line(error)}", hint)


def _failure(url: str, error: Exception) -> RunError:
    kind, reason = type(error).__name__, _first_line(error)
    if isinstance(error, ValueError) and "rotocol" in reason:
        return RunError(f"{url}: fsspec knows no such protocol: {reason}", "use s3:// or gs://, or install its package")
    said = reason.lower()
    if isinstance(error, PermissionError) or "forbidden" in said or "denied" in said:
        return RunError(f"{url}: access is denied: {reason}", _CREDENTIALS)
    if "bucket" in said and ("not exist" in said or "nosuch" in said):
        return no_bucket(url)
    if "Credential" in kind or "credential" in said:
        return RunError(f"{url}: no credentials: {reason}", _CREDENTIALS)
    return RunError(f"{url} cannot be used: {kind}: {reason}", "look at the network; a run goes on by --resume")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
