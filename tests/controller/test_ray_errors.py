"""What a person is told when a call fails on a rank: one line, whatever Ray wrapped it in."""

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayTaskError

from verl_core.config.errors import RunError, UserError
from verl_core.controller.executors.ray import LONGEST, translated


def task_error(cause: Exception) -> Exception:
    """As Ray raises it where the result is awaited."""
    return RayTaskError("Worker.step", "Traceback (most recent call last): ...", cause).as_instanceof_cause()


def test_an_rlx_error_arrives_as_it_was_raised():
    error = translated(task_error(UserError("model folder /m has no weights", "copy it again")))
    assert type(error) is UserError
    assert (error.message, error.hint, error.exit_code) == ("model folder /m has no weights", "copy it again", 1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            task_error(RuntimeError("CUDA error:\n  misaligned address\n")),
            "RuntimeError: CUDA error: misaligned address",
        ),
        (task_error(ValueError("x" * 5000)), "ValueError: " + "x" * LONGEST + "..."),
        (OutOfMemoryError("the node ran out\nof memory"), "OutOfMemoryError: the node ran out of memory"),
        (ActorDiedError(), "process died"),
    ],
)
def test_every_other_failure_is_one_line_and_exit_5(error: Exception, said: str):
    told = translated(error)
    assert isinstance(told, RunError) and told.exit_code == 5 and told.hint
    assert said in told.message and "\n" not in told.message
