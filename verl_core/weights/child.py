"""The factory of an engine that takes weights from a transport: what `ChildEngine` starts for ipc, broadcast, delta and
disk. The engine's own factory makes the engine; an inbox stands beside it."""

from __future__ import annotations

import importlib
from typing import Any

from verl_core.rollout.protocol import RolloutEngine
from verl_core.weights.inbox import Inbox


def make(factory: str, options: dict[str, Any], device: str, keeps: bool = False) -> RolloutEngine:
    """The engine of `factory` ("module:function", called with `options`) with the inbox's `weights_*` as further
    methods. Of an engine that offers `held_weights()` a verified transfer compares what it holds, see `Inbox`.

    Args:
        device: where the engine's weights lie.
        keeps: the engine uses tensors where they lie (hf) instead of copying them.
    """
    module, name = factory.split(":")
    engine: Any = getattr(importlib.import_module(module), name)(**options)
    inbox = Inbox(engine, device=device, keeps=keeps, held=getattr(engine, "held_weights", None))
    for method in ("weights_open", "weights_opened", "weights_version", "weights_take"):
        setattr(engine, method, getattr(inbox, method))
    return engine
