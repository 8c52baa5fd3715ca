"""Errors a person can act on. Every failure rlx foresees is one of these: one line that names the value, a hint with
the next command, and an exit code (0 ok, 1 user, 3 environment, 4 machine, 5 run, 70 internal)."""

from collections.abc import Sequence


class RlxError(Exception):
    """A foreseen failure.

    `message` is one line that says what is wrong with which value where; `hint` is the next command or step.
    """

    exit_code = 70

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self):  # survives the way back from a Ray actor or a scorer process with its hint
        return (type(self), (self.message, self.hint))


class UserError(RlxError):
    """The command, the configuration or a file given by the user is wrong: decidable before anything starts."""

    exit_code = 1


class ConfigError(UserError):
    """A configuration with problems: all of them, a line each."""

    def __init__(self, problems: Sequence[str], hint: str | None):
        several = "\n  ".join([f"{len(problems)} problems in the configuration:", *problems])
        super().__init__(problems[0] if len(problems) == 1 else several, hint)
        self.problems = list(problems)

    def __reduce__(self):
        return (type(self), (self.problems, self.hint))


class EnvError(RlxError):
    """The software environment cannot be satisfied (conflicting extras, stale lock, no interpreter, no space)."""

    exit_code = 3


class MachineError(RlxError):
    """The machine refuses: doctor found a failure, or the parity gate did not hold."""

    exit_code = 4


class RunError(RlxError):
    """The run failed after it had started."""

    exit_code = 5
