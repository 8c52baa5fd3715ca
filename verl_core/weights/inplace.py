"""Weights to a rollout engine in the trainer's own process: it is handed the tensors themselves, one at a time."""

from verl_core.rollout.protocol import RolloutEngine
from verl_core.training.protocol import TrainEngine


def push(engine: TrainEngine, rollout: RolloutEngine, version: int) -> None:
    """Gives `rollout` the present weights as `version`. An unsharded trainer gives its live tensors, which the engine
    may share rather than copy; a sharded one gathers each. Called on all ranks of the trainer."""
    rollout.update_weights(engine.named_weights(), version)
