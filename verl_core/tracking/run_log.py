"""train.log, and what of it the person at the terminal sees."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def run_logging(run_dir: Path, verbose: bool = False) -> Iterator[None]:
    """Within the context, log records of level INFO (verbose: DEBUG for rlx's own) are appended to RUN_DIR/train.log
    with time and origin, and warnings (verbose: INFO) go to stderr, one line each. Python's own `warnings` go to the
    file only."""
    to_file = logging.FileHandler(run_dir / "train.log", encoding="utf-8")
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(LowerLevel())
    to_stderr.setLevel(logging.INFO if verbose else logging.WARNING)
    to_stderr.addFilter(lambda record: record.name != "py.warnings")

    ours, root = logging.getLogger("verl_core"), logging.getLogger()
    levels = ours.level, root.level
    ours.setLevel(logging.DEBUG if verbose else logging.INFO)
    root.setLevel(min(logging.INFO, root.level))
    for handler in (to_file, to_stderr):
        root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for handler in (to_file, to_stderr):
            root.removeHandler(handler)
            handler.close()
        ours.setLevel(levels[0])
        root.setLevel(levels[1])


class LowerLevel(logging.Formatter):
    """`warning: text`, as the command writes it; the traceback stays in the file."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {record.getMessage()}"
