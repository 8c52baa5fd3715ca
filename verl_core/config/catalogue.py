"""What rlx brings, without importing any of it: algorithms, estimators, losses, engines, executors, transports,
trackers, data sets, scorers. So the command knows that GRPO has no critic before there is an environment."""

from verl_core.config.advantages import register_advantages
from verl_core.config.algorithms import register_algorithms
from verl_core.config.datasets import register_datasets
from verl_core.config.from_models import register_from_models
from verl_core.config.loss_terms import register_loss_terms
from verl_core.config.policy_losses import register_policy_losses
from verl_core.config.preferences import register_preferences
from verl_core.config.registry import Entry, entry, implementation, load_plugins, names, register
from verl_core.config.scorers import register_scorers

__all__ = ["KINDS", "Entry", "entry", "implementation", "load_plugins", "names", "register"]

KINDS = {
    "algorithm.name": "algorithm",
    "algorithm.adv_estimator": "advantage",
    "algorithm.kl_penalty": "kl",
    "algorithm.preference.loss": "preference_loss",
    "actor.policy_loss.loss_mode": "policy_loss",
    "actor.loss_agg_mode": "aggregation",
    "actor.kl_loss_type": "kl",
    "critic.loss_agg_mode": "aggregation",
    "rollout.engine": "engine",
    "weights.type": "transport",
    "trainer.logger": "tracker",
}
"""Keys whose value is the name of an entry, or a list of names, and the kind of entry."""


def _many(kind: str, docs: dict[str, tuple[str, str]]) -> None:
    """Entries without keys of their own: name -> ("module:object", doc)."""
    for name, (where, doc) in docs.items():
        register(kind, name, where=where, doc=doc)


register_advantages()
register_algorithms()
register_from_models()
register_policy_losses()
register_preferences()
register_loss_terms()
register_datasets()
register_scorers()
_many(
    "engine",
    {
        "hf": (
            "verl_core.rollout.hf:HfEngine",
            "Plain torch, with the trainer or on a pool of its own; any device.",
        ),
        "vllm": ("verl_core.rollout.vllm:make", "vLLM in its own process; GPUs, and a CPU build to try it."),
        "sglang": ("verl_core.rollout.sglang:make", "SGLang in its own process; CUDA GPUs (tested on a CPU so far)."),
    },
)
_many(
    "transport",
    {
        "inplace": ("verl_core.weights.inplace:push", "Same process: the engine is handed the tensors."),
        "ipc": ("verl_core.weights.ipc:IpcSender", "Memory that two processes of one device share, in buckets."),
        "broadcast": ("verl_core.weights.broadcast:BroadcastSender", "NCCL from the trainer to engines apart."),
        "delta": ("verl_core.weights.delta.sender:DeltaSender", "Only values that changed, bit for bit."),
    },
)
register(
    "transport",
    "disk",
    where="verl_core.weights.disk:DiskSender",
    keys=("weights.folder",),
    doc="safetensors in a shared folder.",
)
_many(
    "executor",
    {
        "local": ("verl_core.controller.executors.local:LocalExecutor", "One rank, in the trainer's process."),
        "ray": ("verl_core.controller.executors.ray:RayExecutor", "Any number of ranks, on one machine or many."),
    },
)
_many(
    "tracker",
    {
        "console": ("verl_core.tracking.console:ConsoleTracker", "One line a step."),
        "jsonl": ("verl_core.tracking.jsonl:JsonlTracker", "metrics.jsonl, the run's record."),
        "tensorboard": ("verl_core.tracking.tensorboard_events:TensorboardTracker", "TensorBoard event files."),
        "wandb": ("verl_core.tracking.wandb_run:WandbTracker", "Weights & Biases."),
    },
)
