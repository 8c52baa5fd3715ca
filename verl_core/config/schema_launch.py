"""What `rlx train --launcher` must know of a site: queues, images, limits. Nothing here changes what a run computes."""

from dataclasses import dataclass, field

__all__ = ["DockerConfig", "KuberayConfig", "LaunchConfig", "SlurmConfig"]


@dataclass
class SlurmConfig:
    partition: str | None = None
    """Partition (--partition); null: the site's default."""
    account: str | None = None
    """Account that pays (--account); null: the user's default."""
    qos: str | None = None
    """Quality of service (--qos); null: the site's default."""
    time: str = "12:00:00"
    """Time limit as Slurm writes it: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    save_before_s: int = 120
    """Seconds before the time limit at which the run is told to save a checkpoint and end (>= 30)."""
    max_restarts: int = 10
    """How often a job that met its time limit, or was preempted, is queued again to go on (>= 0; 0: never)."""
    options: list[str] = field(default_factory=list)
    """Further options of sbatch, each one #SBATCH line, e.g. --exclusive, --constraint=h200."""
    setup: list[str] = field(default_factory=list)
    """Lines of bash that run first on every machine, e.g. `module load cuda/13.0`."""


@dataclass
class KuberayConfig:
    image: str | None = None
    """Image with the programs rlx, ray and wget; needed to submit."""
    namespace: str | None = None
    """Namespace; null: that of kubectl's context."""
    queue: str | None = None
    """Kueue's local queue (label kueue.x-k8s.io/queue-name); null: started at once."""
    claim: str | None = None
    """Persistent volume claim that every pod can write; run directories go there. Needed to submit."""
    mount: str = "/shared"
    """Where the claim is mounted."""
    secret: str | None = None
    """Secret whose entries become environment variables (HF_TOKEN, WANDB_API_KEY); null: none."""
    node_selector: dict[str, str] = field(default_factory=dict)
    """Labels the machines must have, e.g. {nvidia.com/gpu.product: NVIDIA-H200}."""
    max_restarts: int = 3
    """How often a run that failed is started again to go on from its checkpoint (>= 0)."""


@dataclass
class DockerConfig:
    image: str | None = None
    """Image with the program rlx; null: a CUDA base image, into which this checkout is mounted."""
    shm_size: str = "16g"
    """Shared memory of the container: ranks exchange tensors through it."""
    options: list[str] = field(default_factory=list)
    """Further options of `docker run`, e.g. --volume=/datasets:/datasets."""


@dataclass
class LaunchConfig:
    gpus_per_node: int | None = None
    """Ranks one machine has room for (>= 1); null: those of the largest pool, or of all pools together where each
    has one machine and they are at most 8."""
    cpus_per_rank: int = 8
    """CPU cores asked for each rank (>= 1); slurm and kuberay."""
    memory_per_rank: int | None = None
    """Host memory asked for each rank, GiB (>= 1); null: the site's default."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the run on every machine, e.g. {NCCL_DEBUG: INFO}."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """--launcher slurm."""
    kuberay: KuberayConfig = field(default_factory=KuberayConfig)
    """--launcher kuberay."""
    docker: DockerConfig = field(default_factory=DockerConfig)
    """--launcher docker."""
