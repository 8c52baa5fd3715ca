"""The rollout engine on SGLang 0.5.17, made by `make` in a process of its own (`verl_core.rollout.child`).

`options.py` is what it can be told; `machine.py` what is looked at before SGLang takes its time; `engine.py` the
RolloutEngine; `core.py` feeds SGLang and collects what it draws; `server.py` is SGLang's own engine, whose schedulers
run in processes of their own; `scheduler.py` and `sampler.py` are what rlx adds there: draws by seed and position;
`weights.py` brings new weights. SGLang is imported when an engine is made, not before.
"""

from verl_core.rollout.sglang.factory import make

__all__ = ["make"]
