"""The rollout engine on plain torch: no server, no child process, on any device torch runs on.

`engine.py` is the RolloutEngine; `scheduler.py` fills and refills the batch; `stepper.py` holds what the device knows
of the batch, and draws; `shapes.py` says which shapes steps have, `graphs.py` records them as CUDA graphs; `cache.py`
holds keys and values; `llama_family.py` and `generic.py` are the two decoders; `weights.py` takes weights, shared or
copied; `control.py` pauses and aborts from other threads.
"""

from verl_core.rollout.hf.engine import HfEngine

__all__ = ["HfEngine"]
