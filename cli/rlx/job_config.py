"""The configuration of a job that has no run directory, as a file that it reads."""

import hashlib
from pathlib import Path

from rlx import text_files
from verl_core.config import write
from verl_core.config.errors import EnvError
from verl_core.config.files import cache_dir
from verl_core.config.schema import RlxConfig


def config_file(config: RlxConfig, command: str) -> Path:
    """Writes it to the command's part of the cache folder, under its digest, so that it stays one file. Raises EnvError
    when that cannot be written."""
    text = write.dump(write.of_run(config))
    path = cache_dir() / command / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text_files.write(path, text)
    except OSError as problem:
        raise EnvError(f"{path} cannot be written: {problem.strerror}", "RLX_CACHE=/a/writable/folder") from problem
    return path
