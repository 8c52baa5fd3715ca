"""Schema of a run itself: its folder, its length, what it writes, measures and checks."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class KeepBestConfig:
    metric: str | None = None
    """Metric, as metrics.jsonl has it at the step of a checkpoint, by which the best one is kept beside the newest;
    null: none."""
    mode: Literal["max", "min"] = "max"
    """Whether the highest or the lowest value is the best; of equals the newest is."""


@dataclass
class TrainerConfig:
    project_name: str = "rlx"
    """First folder under default_local_dir; one name without `/`."""
    experiment_name: str | None = None
    """Second folder, one name too; null: `<profile>-<n>`, the first free n."""
    default_local_dir: str = "runs"
    """Where run directories go, relative to the current folder."""
    checkpoint_url: str | None = None
    """Object store where checkpoints go, as s3://bucket/folder, below which each run has its own
    <project_name>/<experiment_name>; null: the run directory. Credentials come from the environment."""
    seed: int = 0
    """Seed of everything drawn at random, in [0, 2^63)."""
    deterministic: bool = False
    """Ask every library for deterministic kernels (slower on GPUs; the CPU path is deterministic anyway)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU when there is one."""
    num_threads: int | None = None
    """Compute threads of each rank on the CPU; null: 1. The optimizer in host memory (adamw_host) takes its own."""
    mode: Literal["sync"] = "sync"
    """When generation and updates may overlap; sync: never."""
    total_epochs: int = 30
    """Passes over the training prompts (>= 1)."""
    total_training_steps: int | None = None
    """Stop after this many steps; null: total_epochs decides."""
    save_freq: int = -1
    """Checkpoint every this many steps and after the last; -1: only after the last; 0: never, but for a run that is
    stopped before its last step."""
    test_freq: int = -1
    """Validate every this many steps and after the last; -1: only after the last; 0: never."""
    val_before_train: bool = True
    """Validate before the first step."""
    critic_warmup: int = 0
    """Steps in which only the critic is updated (>= 0)."""
    async_save: bool = True
    """Write checkpoints while training goes on, from a copy of each rank's share in host memory. Where that memory is
    not free, and for the last checkpoint of a run, training waits."""
    max_ckpt_to_keep: int | None = None
    """Checkpoints kept, oldest removed first; null: all."""
    keep_best: KeepBestConfig = field(default_factory=KeepBestConfig)
    """One more checkpoint that is kept."""
    logger: list[Literal["console", "jsonl", "tensorboard", "wandb"]] = field(
        default_factory=lambda: ["console", "jsonl"]
    )
    """Where metrics go; jsonl (the run's record) is always written."""
    log_rollouts: int = 8
    """Sampled answers written to rollouts/step_N.jsonl each step (>= 0; -1: all)."""
    parity: Literal["error", "warn", "off"] = "error"
    """Compare engine and trainer log-probs at step 0: error ends the run with exit 4."""
    parity_threshold: float | None = None
    """Largest mean |difference|; null: 1e-4 when both sides are float32, else 0.15."""
    profile_steps: list[int] | None = None
    """Steps (>= 1) of which a trace is written to <run>/profile/step_N_rank_R.json.gz; null: none."""
    profile_ranks: list[int] = field(default_factory=lambda: [0])
    """Ranks (>= 0) that write one, counted through all pools."""
    profile_memory: bool = False
    """Draw the memory that is allocated in the traces as well."""
