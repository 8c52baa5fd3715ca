"""Rollout: token requests in, sampled tokens with log-probs out.

`protocol.py` is the border every engine keeps; `hf/` is the engine on plain torch with its own decode loop, `vllm/` the
one on vLLM; `stepping.py` and `rows.py` are what such engines share; `child/` runs any engine in a process of its own;
`pool.py` makes one engine of several, with `router.py` and `replicas.py`; `agent_loop.py` turns a prompt into
trajectories through an engine. SGLang comes beside them.
"""
