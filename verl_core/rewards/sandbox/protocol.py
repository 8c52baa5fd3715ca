"""What every sandbox offers: one program in, one outcome out."""

from dataclasses import dataclass
from typing import Literal, Protocol

Status = Literal["ok", "failed", "timeout", "memory", "output", "threads"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run of a program may use. A program is a single process; threads share all of this."""

    seconds: float = 4.0
    """Wall-clock time; CPU time too, rounded up to whole seconds."""
    memory_mb: int = 1024
    """Address space, MiB, the interpreter's own 20 to 30 included."""
    output_kb: int = 4096
    """What it prints, stdout and stderr together, KiB."""
    tmp_mb: int = 16
    """Files in its own /tmp, MiB."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `output`, `threads` and `timeout` are seen from outside, by whoever stopped the program;
    `memory` is what the interpreter says of itself, a reason to show and no more."""

    status: Status
    """ok: it ended with exit code 0; failed: with another, or by a signal; else the limit that ended it."""
    stdout: bytes
    """At most `Limits.output_kb`."""
    stderr: str
    exit_code: int | None
    """Negative or above 128: a signal. None where it was stopped from outside."""
    seconds: float
    """Wall-clock time from the start of the sandbox to its end."""


class Sandbox(Protocol):
    """Runs Python programs that nobody trusts."""

    parallel: int
    """How many programs one scorer process should run at the same time."""

    def run(self, program: str, stdin: bytes, limits: Limits) -> Outcome:
        """Runs `program` as `main.py` on `stdin` until it ends or is stopped. When this returns, nothing of the program
        is left. Raises EnvError when the sandbox itself fails, which says nothing about the program."""
        ...
