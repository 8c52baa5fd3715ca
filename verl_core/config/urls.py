"""URLs of folders on object stores, where a run may keep its checkpoints: told from paths, and what each needs."""

import re

from verl_core.config.schema_trainer import TrainerConfig

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_SECRET = re.compile(r"[^:/]+://[^/@]*:(?!\d+(/|$))[^@]*@")
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}

NO_CREDENTIALS = "credentials do not belong in a URL: they come from the environment (AWS_ACCESS_KEY_ID, ...)"


def is_url(text: object) -> bool:
    """Whether this is `protocol://...`, in place of a path or the name of a model."""
    return isinstance(text, str) and _URL.match(text) is not None


def url_fault(text: str) -> str | None:
    """Why this can be no folder of an object store; None for one that may be there."""
    if not is_url(text):
        return "expected a URL such as s3://bucket/folder; a folder of this machine is trainer.default_local_dir"
    protocol, _, rest = text.partition("://")
    if protocol in ("file", "local"):
        return "a folder of this machine is trainer.default_local_dir"
    if holds_credentials(text):
        return NO_CREDENTIALS
    if not rest.strip("/") or "?" in rest or "#" in rest:
        return "expected a URL with a bucket or a host, and without ? or #"
    return None


def holds_credentials(url: str) -> bool:
    """Whether a secret stands before the host, which no message may show; it may have a / in it. A name alone, as in
    abfs://container@account.dfs.core.windows.net, and a port are none."""
    return _SECRET.match(url) is not None


def url_extras(url: str | None) -> set[str]:
    """The extras of pyproject.toml that reading and writing there needs; none for a protocol that rlx does not lock."""
    return {extra} if url and (extra := _EXTRAS.get(url.partition("://")[0].lower())) else set()


def checkpoints_url(trainer: TrainerConfig) -> str | None:
    """The folder of a run's checkpoints where they go to an object store. The run has a name by then."""
    if trainer.checkpoint_url is None:
        return None
    return f"{trainer.checkpoint_url.rstrip('/')}/{trainer.project_name}/{trainer.experiment_name}"
