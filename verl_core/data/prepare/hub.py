"""Files of a data set from the Hugging Face hub, into its cache: a second time they are there, with or without a
network. `HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN` and `HF_HUB_OFFLINE` are obeyed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from verl_core.config.errors import UserError


def fetch(repository: str, patterns: Sequence[str], name: str) -> Path:
    """The folder, named by its commit, with the repository's files that fit one of `patterns`.

    Raises UserError when the hub cannot be reached or refuses; `name` is the data set's, for the hint.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        return Path(snapshot_download(repository, repo_type="dataset", allow_patterns=list(patterns)))
    except Exception as e:  # the hub's client raises errors of several libraries
        said = str(e).strip().splitlines()
        raise UserError(
            f"{repository} cannot be fetched from the hub: {said[0] if said else type(e).__name__}",
            hint=f"fetch its files elsewhere and give their folder: rlx prepare {name} --source DIR",
        ) from e
