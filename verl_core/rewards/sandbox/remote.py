"""Programs on a server that speaks SandboxFusion's protocol (arXiv 2412.00535): POST /run_code."""

import json
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from verl_core.config.errors import RunError
from verl_core.config.schema_sandbox import SandboxConfig
from verl_core.rewards.sandbox.protocol import Limits, Outcome, Status

_OVERHEAD_S = 5.0  # for the network and the server's queue, beyond the program's own time
_WAIT_S = 0.5  # before the first further try, then twice as long each time
_BUSY = frozenset({408, 429, 500, 502, 503, 504})


class Remote:
    """Sends each program to `config.url`. How well it is shut in is the server's business; how long we wait, and how
    much we read of what it says, is ours."""

    def __init__(self, config: SandboxConfig):
        assert config.url is not None  # a check of the configuration
        base = config.url.rstrip("/")
        self._url = base if base.endswith("/run_code") else f"{base}/run_code"
        self._retries = config.retries
        self.parallel = config.max_concurrent

    def run(self, program: str, stdin: bytes, limits: Limits) -> Outcome:
        """Raises RunError when the server cannot be reached, refuses the request or answers with something else."""
        body = {
            "code": program,
            "language": "python",
            "stdin": stdin.decode(errors="surrogateescape"),
            "compile_timeout": limits.seconds,
            "run_timeout": limits.seconds,
            "memory_limit_MB": limits.memory_mb,
        }
        started = time.monotonic()
        most = 2 * 6 * limits.output_kb * 1024 + 65536  # bytes: stdout and stderr, of which JSON may write one as six
        reply = self._post(json.dumps(body).encode(), most, limits.seconds + _OVERHEAD_S)
        seconds = time.monotonic() - started
        if len(reply) == most:  # a server that does not cut what the program printed
            return Outcome("output", b"", "", None, seconds)
        try:
            return _outcome(json.loads(reply), limits, seconds)
        except (ValueError, TypeError, AttributeError, RecursionError) as e:
            raise self._fault(f"{type(e).__name__}: {e}") from e

    def _post(self, body: bytes, most: int, timeout_s: float) -> bytes:
        """The first `most` bytes of the reply."""
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        for attempt in range(self._retries + 1):
            try:
                with urllib.request.urlopen(request, timeout=timeout_s) as reply:
                    return bytes(reply.read(most))
            except urllib.error.HTTPError as e:
                fault, again = f"HTTP {e.code} {e.reason}", e.code in _BUSY
            except (OSError, HTTPException) as e:
                fault, again = str(e) or type(e).__name__, True
            if not again or attempt == self._retries:
                break
            time.sleep(_WAIT_S * 2**attempt)
        raise self._fault(fault)

    def _fault(self, what: str) -> RunError:
        return RunError(f"the sandbox server {self._url} gave no outcome: {what}", hint="look at reward.sandbox.url")


def _outcome(answer: dict[str, Any], limits: Limits, seconds: float) -> Outcome:
    """Raises ValueError, TypeError or AttributeError for what is no answer of the protocol."""
    run = answer.get("run_result")
    if answer.get("status") == "SandboxError" or not isinstance(run, dict):
        raise RunError(f"the sandbox server failed: {str(answer.get('message') or answer)[:200]}")
    stdout, stderr = str(run.get("stdout") or "").encode(errors="replace"), str(run.get("stderr") or "")
    code = run.get("return_code")
    status: Status = "ok" if code == 0 else "failed"
    if run.get("status") == "TimeLimitExceeded":
        status, code = "timeout", None
    elif len(stdout) > limits.output_kb * 1024:
        status, code = "output", None
    return Outcome(status, stdout[: limits.output_kb * 1024], stderr, code, float(run.get("execution_time") or seconds))
