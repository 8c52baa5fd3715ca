"""The whole configuration as typed dataclasses: field, default, and under each field its meaning, unit and range.

rlx's key is veRL's key without the prefix `actor_rollout_ref.`; the exceptions stand in `keys.py`. Batch and mini-batch
count prompts, micro-batch counts sequences, token budgets count tokens. `None` means: derived, as the field says.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from verl_core.config.rollout_correction import RolloutCorrectionConfig
from verl_core.config.schema_algorithm import AlgorithmConfig, FilterGroupsConfig, KlCtrlConfig, PfPpoConfig
from verl_core.config.schema_data import CurriculumConfig, DataConfig, MixtureConfig
from verl_core.config.schema_distillation import DistillationConfig, PrimeConfig, TeacherConfig, TeacherModelConfig
from verl_core.config.schema_launch import DockerConfig, KuberayConfig, LaunchConfig, SlurmConfig
from verl_core.config.schema_preference import PreferenceConfig
from verl_core.config.schema_reward import CustomRewardConfig, LengthShapingConfig, OverlongBufferConfig, RewardConfig
from verl_core.config.schema_reward_models import JudgeConfig, RewardModelConfig
from verl_core.config.schema_roles import (
    ActorConfig,
    CriticConfig,
    CriticModelConfig,
    EntropyCtrlConfig,
    FsdpConfig,
    MegatronConfig,
    OptimConfig,
    PolicyLossConfig,
    RefConfig,
    WarmupConfig,
    WarmupPhase,
)
from verl_core.config.schema_trainer import KeepBestConfig, TrainerConfig

__all__ = [
    "FACTS",
    "ActorConfig",
    "AlgorithmConfig",
    "ClusterConfig",
    "CriticConfig",
    "CriticModelConfig",
    "CurriculumConfig",
    "CustomRewardConfig",
    "DataConfig",
    "DistillationConfig",
    "DockerConfig",
    "EntropyCtrlConfig",
    "FilterGroupsConfig",
    "FsdpConfig",
    "JudgeConfig",
    "KeepBestConfig",
    "KlCtrlConfig",
    "KuberayConfig",
    "LaunchConfig",
    "LengthShapingConfig",
    "MegatronConfig",
    "MixtureConfig",
    "ModelConfig",
    "OptimConfig",
    "OverlongBufferConfig",
    "PfPpoConfig",
    "PolicyLossConfig",
    "PoolConfig",
    "PreferenceConfig",
    "PrimeConfig",
    "RefConfig",
    "RewardConfig",
    "RewardModelConfig",
    "RlxConfig",
    "RolloutConfig",
    "RolloutCorrectionConfig",
    "SlurmConfig",
    "TeacherConfig",
    "TeacherModelConfig",
    "TrainerConfig",
    "ValKwargs",
    "WarmupConfig",
    "WarmupPhase",
    "WeightsConfig",
]

FACTS = ("purpose", "hardware", "memory", "time")
"""Keys of what a profile says of itself, for people; they decide nothing in a run."""


@dataclass
class ModelConfig:
    path: str = "Qwen/Qwen2.5-0.5B-Instruct"
    """Hugging Face folder, hub name, or `builtin:NAME` (a tiny model built here and warmed up by `warmup`)."""
    tokenizer_path: str | None = None
    """Tokenizer folder or hub name; null: `path`."""
    trust_remote_code: bool = False
    """Allow model code that comes with the checkpoint."""
    custom_chat_template: str | None = None
    """Jinja chat template used instead of the tokenizer's."""
    override_config: dict[str, Any] = field(default_factory=dict)
    """Fields of the model's config.json to override, e.g. {attention_dropout: 0.0}."""
    enable_gradient_checkpointing: bool = True
    """Recompute layer activations in the backward pass: less memory, about a third more compute."""
    recompute_granularity: Literal["full", "selective"] = "full"
    """What gradient checkpointing computes again: whole layers (compiled ones keep what attention returns), or all but
    attention and its projections: more memory, about half the compute."""
    enable_activation_offload: bool = False
    """Keep the activations that are not recomputed in host memory between forward and backward."""
    use_liger: bool = False
    """Liger's fused kernels for norms, rotary embeddings and gated MLPs."""
    lora_rank: int = 0
    """Rank of the low-rank adapter that the actor trains in place of the whole model (arXiv 2106.09685); 0: none."""
    lora_alpha: int = 16
    """The adapter's output is scaled by lora_alpha / lora_rank (>= 1)."""
    target_modules: str | list[str] = "all-linear"
    """Linear layers that get an adapter, by name or the end of it (q_proj); all-linear: all but the output layer."""
    exclude_modules: list[str] | None = None
    """Layers that get none: names, or parts of them (layers.0)."""
    lora_adapter_path: str | None = None
    """Folder of an adapter, as peft writes it, to start from; null: a fresh one. KL is still measured to the base."""


@dataclass
class ValKwargs:
    temperature: float = 0.0
    """Temperature in validation; 0: greedy."""
    top_p: float = 1.0
    """Nucleus share in validation, in (0, 1]."""
    top_k: int = -1
    """Top-k in validation; -1: off."""
    n: int = 1
    """Answers a validation prompt (>= 1)."""
    do_sample: bool = False
    """false: greedy, whatever the temperature."""


@dataclass
class RolloutConfig:
    engine: Literal["hf", "vllm", "sglang"] = "vllm"
    """Generation engine (veRL: rollout.name)."""
    pool: str | None = None
    """Pool of the rollout engines; null: the actor's."""
    n: int = 1
    """Answers a prompt, the group size G (>= 1)."""
    temperature: float = 1.0
    """Sampling temperature (> 0)."""
    top_p: float = 1.0
    """Nucleus share, in (0, 1]."""
    top_k: int = -1
    """Top-k; -1: off."""
    stop: list[str] = field(default_factory=list)
    """Strings that end an answer; the tokens that complete one are kept."""
    ignore_eos: bool = False
    """Go on past the end-of-sequence ids until max_response_length."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """dtype of generation; null: bfloat16 on a GPU, float32 on the CPU."""
    max_num_seqs: int = 256
    """Sequences generated at the same time on each rank (>= 1)."""
    max_model_len: int | None = None
    """Longest prompt + response; null: their limits' sum."""
    gpu_memory_utilization: float = 0.5
    """Share of a GPU's memory for the engine's weights and KV cache, in (0, 1); vllm and sglang."""
    tensor_model_parallel_size: int = 1
    """GPUs one engine replica spans; vllm and sglang."""
    max_num_batched_tokens: int = 8192
    """Tokens the engine takes through the model at once (>= 1); vllm and sglang."""
    enforce_eager: bool = False
    """Do not capture CUDA graphs; vllm and sglang."""
    lora_native: bool = False
    """Send a trained adapter as it is, to be served over the base weights that the engine keeps, instead of weights
    with the adapter folded in: less to send and no rounding of small changes to dtype, but slower generation; vllm."""
    restarts: int = 3
    """Engines that may be started again within an hour, of all together, when they die or hang (>= 0)."""
    stall_s: float = 60.0
    """Seconds without a sign of life after which an engine counts as hanging while it has work (> 0)."""
    log_prob_micro_batch_size_per_gpu: int | None = None
    """Sequences a forward when old log-probs are recomputed; null: the actor's micro-batch rule."""
    log_prob_max_token_len_per_gpu: int | None = None
    """Tokens a forward when old log-probs are recomputed; null: the actor's micro-batch rule."""
    old_log_prob: Literal["auto", "rollout", "recompute"] = "auto"
    """Old log-probs from the engine, from a trainer pass, or auto: from the engine where it samples the trainer's own
    distribution (no top-p/top-k), rollout_is is null, and the parity gate measured a mean difference of at most a
    quarter of the clip range (with rollout_rs: of the gate's own bound)."""
    val_kwargs: ValKwargs = field(default_factory=ValKwargs)
    """Sampling in validation."""


@dataclass
class PoolConfig:
    nodes: int = 1
    """Machines (>= 1)."""
    gpus: int = 1
    """Ranks on each machine: GPUs, or processes on a CPU machine (>= 1)."""


@dataclass
class ClusterConfig:
    executor: Literal["auto", "local", "ray"] = "auto"
    """auto: local for one rank, ray for more."""
    nproc: int | None = None
    """Shorthand: one pool `main` with this many ranks on one machine."""
    nnodes: int = 1
    """Shorthand (veRL: trainer.nnodes): machines of pool `main`."""
    n_gpus_per_node: int = 1
    """Shorthand (veRL: trainer.n_gpus_per_node): ranks on each machine of pool `main`."""
    pools: dict[str, PoolConfig] = field(default_factory=dict)
    """Named pools; empty: the shorthand's one pool `main`."""
    ray_address: str | None = None
    """Ray cluster to join; null: start one on this machine."""


@dataclass
class WeightsConfig:
    type: Literal["inplace", "ipc", "broadcast", "delta", "disk"] | None = None
    """How new weights reach the rollout engine. inplace: same process (hf); ipc: memory shared on one device;
    broadcast: NCCL to GPUs of another pool; delta: only the changed values; disk: a shared folder. null: inplace for
    hf and ipc for another engine on the actor's pool, broadcast on a pool of its own."""
    verify: bool = False
    """Hash every tensor on both sides of a transfer and compare; the first that differs is named."""
    bucket_mb: int = 256
    """MiB of each of the two buckets that a transfer fills in turn, and of the files of disk."""
    folder: str | None = None
    """disk: where weights are written, under the same path on every node; one run at a time."""


@dataclass
class RlxConfig:
    purpose: str = ""
    """One line shown by `rlx profile ls`."""
    hardware: str = ""
    """The smallest machines the profile is meant for; shown by `rlx profile ls`."""
    memory: str = ""
    """Memory that a GPU of them is expected to need, as `rlx plan` counts it; shown by `rlx profile ls`."""
    time: str = ""
    """Time that a step is expected to take there; shown by `rlx profile ls`."""
    data: DataConfig = field(default_factory=DataConfig)
    """Prompts."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The policy's model."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    """The policy's training."""
    ref: RefConfig = field(default_factory=RefConfig)
    """The frozen policy that KL terms compare with."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Generating answers."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    """The value model's training."""
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """From rewards to advantages."""
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    """Learning from teachers; algorithm.name=opd."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    """Where and how the teachers compute."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """Scoring answers."""
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    """Supervised phases that a `builtin:` model starts with."""
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    """From the trainer's weights to the engine's."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Machines and ranks."""
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    """What `rlx train --launcher` must know of a site."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """The run: name, length, checkpoints, validation, records."""
