"""The rollout engine on vLLM 0.26, made by `make` in a process of its own (`verl_core.rollout.child`).

`options.py` is what is refused before a minute is lost; `engine.py` the RolloutEngine, most of it `rollout/stepped.py`;
`core.py` steps vLLM's engine core; `sampling.py` says how tokens are drawn in vLLM's words; `weights.py` and
`worker_extension.py` bring new weights into its model. vLLM is imported when an engine is made, not before.
"""

from verl_core.rollout.vllm.factory import make

__all__ = ["make"]
