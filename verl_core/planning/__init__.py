"""Estimates of memory, communication and time for a configuration, without a GPU, weights or a network.

`planning.plan(config, gpu)` is the way in. shapes.py and known.py say what a model is, gpus.py what a card is, mesh.py
who holds what, memory.py and engine_memory.py how many bytes that is, timing.py how long it takes, advice.py what would
make it fit. Every formula stands in docs/planning.md with its source.
"""

from verl_core.planning.plan import Plan, plan

__all__ = ["Plan", "plan"]
