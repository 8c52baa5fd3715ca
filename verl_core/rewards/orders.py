"""What the pool, templates and scorer processes say to one another beside answers and scores."""

from dataclasses import dataclass

FORK, LOAD, REAP = b"F", b"L", b"R"
READY = "ready"


@dataclass(frozen=True)
class Loaded:
    """The template has done so. `error`: why not. `forkable`: it has no threads and holds no files or connections open,
    which scorers would lack or share; one that has becomes a scorer itself."""

    error: Exception | None = None
    forkable: bool = True


@dataclass(frozen=True)
class Ended:
    """A scorer process has ended with this status, negative for a signal."""

    pid: int
    status: int


@dataclass(frozen=True)
class Started:
    """First word of a scorer, which leads a process group of its own by then."""

    pid: int
