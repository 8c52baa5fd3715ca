"""Rollout: token requests in, sampled tokens with log-probs out.

`protocol.py` is the border every engine keeps; `hf/` is the engine on plain torch with its own decode loop;
`agent_loop.py` turns a prompt into trajectories through an engine. vLLM and SGLang come beside `hf/`.
"""
