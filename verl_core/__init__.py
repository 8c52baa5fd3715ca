"""Training, rollout, rewards and configuration of rlx; `rlx` itself stands in `cli/rlx`."""

import os
import signal
import threading
import warnings
from typing import NoReturn

# Python says so each time it compiles torchao, which transformers imports: in a new or a read-only environment.
warnings.filterwarnings("ignore", "invalid escape sequence", SyntaxWarning, module=r".*[/\\]torchao[/\\]")


def interrupted(number: int, frame: object) -> NoReturn:
    """Ctrl-C while a job imports its packages: there is nothing to clear up."""
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


# `rlx` blocks Ctrl-C when it becomes a job, whose interpreter would show a traceback. Imports take seconds: from here
# to `run_job`, which listens to it from then on, it ends the process.
if (
    threading.current_thread() is threading.main_thread()
    and signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, interrupted)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
