"""Weight transport: how new weights reach the rollout engines, chosen by `weights.type`. docs/weights.md describes it.

`inplace.py` serves the hf engine in the trainer's process. `broadcast.py`, `ipc.py`, `delta/` and `disk.py` have a
sender for the trainer and a receiver for the engine's process, where `inbox.py` gives what arrives to the engine.
"""
