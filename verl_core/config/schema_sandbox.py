"""Schema of the sandbox that runs programs which a model has written."""

from dataclasses import dataclass
from typing import Literal


@dataclass
class SandboxConfig:
    type: Literal["auto", "bubblewrap", "nsjail", "rlimits", "remote"] = "auto"
    """Where programs run. auto: remote with a `url`, else bubblewrap, else nsjail; rlimits: a plain process under
    limits, which can read and write what this user can, and is never taken unasked; remote: a SandboxFusion server."""
    run_timeout_s: float = 4.0
    """Wall-clock and CPU limit of one run of a program, seconds (> 0)."""
    timeout_s: float | None = None
    """Wall-clock limit of all runs of one answer, seconds (> 0, below reward.timeout_s); tests that are left then have
    failed. null: four fifths of reward.timeout_s."""
    memory_mb: int = 1024
    """Memory of one run, MiB (in [64, 1048576])."""
    output_kb: int = 4096
    """What one run may print, KiB (in [1, 1048576])."""
    tmp_mb: int = 16
    """Files that one run may write, MiB, in its own /tmp (in [1, 1048576])."""
    url: str | None = None
    """remote: the server's address, with or without `/run_code`."""
    max_concurrent: int = 64
    """remote: requests at the same time, over all scorer processes (>= 1)."""
    retries: int = 3
    """remote: further tries of a request that the server refused or dropped (>= 0)."""
