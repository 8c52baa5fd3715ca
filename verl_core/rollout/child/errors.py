"""How a rollout engine in another process fails, and how its errors cross the border."""

from __future__ import annotations

import traceback
from typing import Any

from verl_core.config import errors
from verl_core.config.errors import EnvError, RlxError, RunError


class EngineLost(RunError):
    """The engine's process has ended: what was asked of it will not be answered. Another engine may be asked."""


class EngineStalled(EngineLost):
    """The engine's process gave no sign of life although requests were open; it was killed."""


# What the protocol promises to raise comes back as what it was; everything else as RunError.
_KEPT: dict[str, type[Exception]] = {
    **{kind.__name__: kind for kind in (errors.UserError, EnvError, errors.MachineError, RunError)},
    **{kind.__name__: kind for kind in (KeyError, ValueError, TypeError, NotImplementedError)},
}


def to_wire(error: BaseException) -> dict[str, Any]:
    """JSON of an exception. Its traceback goes along for people."""
    kind = next((c.__name__ for c in type(error).__mro__ if c.__name__ in _KEPT), type(error).__name__)
    kept = kind in _KEPT
    if isinstance(error, RlxError):
        text = error.message
    else:  # a KeyError's text is the repr of its key
        text = str(error.args[0]) if kept and error.args else " ".join(f"{type(error).__name__}: {error}".split())
    return {
        "kind": kind,
        "message": text,
        "hint": getattr(error, "hint", None),
        "trace": "".join(traceback.format_exception(error)),
    }


def from_wire(sent: dict[str, Any]) -> Exception:
    """The exception again, with the other process's traceback as a note."""
    kind = _KEPT.get(sent["kind"], RunError)
    error = kind(sent["message"], sent["hint"]) if issubclass(kind, RlxError) else kind(sent["message"])
    error.add_note(f"in the engine's process:\n{sent['trace']}")
    return error
