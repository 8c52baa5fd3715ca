"""Weight transport: how new weights reach the rollout engines. `inplace` serves the hf engine in the trainer's own
process; ipc, broadcast, delta and disk come beside it, chosen by `weights.type`."""
