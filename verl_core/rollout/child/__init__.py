"""A rollout engine in a process of its own.

`engine.py` is the parent's end, a RolloutEngine; `process.py` starts and ends the process; `host.py` is what runs in
it, below `guard.py`, which ends all that the engine has started; `wire.py` and `flat.py` are the messages between the
two; `shared_weights.py` hands over weights through files in memory (`memory.py`); `shared_memory.py` is flat memory of
two processes, on GPUs too.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_core.rollout.child.engine import ChildEngine as ChildEngine
    from verl_core.rollout.child.errors import EngineLost as EngineLost
    from verl_core.rollout.child.errors import EngineStalled as EngineStalled

_PLACES = {"ChildEngine": "engine", "EngineLost": "errors", "EngineStalled": "errors"}


def __getattr__(name: str) -> Any:
    """Imports the parent's end when it is asked for: the host forks first, and wants as little as possible by then."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
