"""Schema of the roles that train or only compute log-probs: actor, reference, critic, and the warm-up phases."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class OptimConfig:
    optimizer: Literal["adamw", "adamw_8bit", "adamw_host", "muon"] = "adamw"
    """adamw; adamw_8bit: its state in 8 bits, block by block (arXiv 2110.02861); adamw_host: its state and step in host
    memory; muon: torch.optim.Muon on the 2-D layer matrices and AdamW on embeddings, head, norms and biases."""
    lr: float = 1e-6
    """Peak learning rate (> 0); for muon that of the AdamW part."""
    muon_lr: float = 0.02
    """Learning rate of the Muon part (> 0); only with optimizer=muon."""
    muon_momentum: float = 0.95
    """Momentum of the Muon part, in [0, 1)."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    weight_decay: float = 0.01
    """Decoupled weight decay (>= 0)."""
    lr_scheduler_type: Literal["constant", "cosine", "linear"] = "constant"
    """Course of the learning rate after warm-up."""
    lr_warmup_steps: int = -1
    """Training steps of linear warm-up, which rises with each of their optimizer steps; -1: lr_warmup_steps_ratio
    decides."""
    lr_warmup_steps_ratio: float = 0.0
    """Warm-up as a share of the whole run, in [0, 1]."""
    min_lr_ratio: float = 0.0
    """Floor of cosine and linear, as a share of lr, in [0, 1]."""


@dataclass
class FsdpConfig:
    model_dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of the stored (master) parameters and optimizer state, and of the gradient of a whole mini-batch. The
    gradients of its micro-batches add up in float32; with reduce_gradients=each, shards in this dtype."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """dtype of forward and backward; null: bfloat16 on a GPU, float32 on the CPU."""
    fsdp_size: int = -1
    """Ranks that share one copy of the parameters; the pool is then a mesh of replicas x shards. -1: the whole pool."""
    tensor_parallel_size: int = 1
    """Of these, neighbouring ranks that have a part each of every layer's matrices, and work on the same sequences."""
    expert_parallel_size: int = 1
    """Of these, neighbouring ranks among which a layer's experts are dealt out; tokens travel instead of experts."""
    reshard_after_forward: bool = True
    """Free gathered parameters between forward and backward: less memory, more communication."""
    reshard_between_micro_batches: bool | None = None
    """Free gathered parameters after each micro-batch's backward; false gathers them once a mini-batch. null: false
    where the whole model in `dtype` takes less than a tenth of a GPU."""
    reduce_gradients: Literal["once", "each"] | None = None
    """Add gradients up over ranks once a mini-batch, which holds whole float32 gradients on every GPU between its
    micro-batches, or after each micro-batch, which holds shards only. null: each where the whole ones take more than a
    tenth of a GPU."""
    use_torch_compile: bool | None = None
    """Compile the decoder layers with torch.compile: fewer passes over memory, half a minute at the start. null: on a
    GPU."""
    param_offload: bool = False
    """Keep parameters in host memory while the role is idle."""
    optimizer_offload: bool = False
    """Keep optimizer state in host memory while the role is idle."""


@dataclass
class MegatronConfig:
    tensor_model_parallel_size: int = 1
    """Ranks that split every matrix (>= 1)."""
    pipeline_model_parallel_size: int = 1
    """Stages the layers are cut into (>= 1)."""
    virtual_pipeline_model_parallel_size: int | None = None
    """Chunks of layers a stage holds, interleaved; null: one."""
    context_parallel_size: int = 1
    """Ranks that split every sequence (>= 1)."""
    expert_model_parallel_size: int = 1
    """Ranks the experts of a layer are spread over (>= 1)."""
    expert_tensor_parallel_size: int | None = None
    """Ranks that split one expert; null: 1 for a model with experts."""
    sequence_parallel: bool = True
    """Split norms and residuals over the tensor-parallel ranks as well."""
    use_distributed_optimizer: bool = True
    """Spread the optimizer's state over the data-parallel ranks."""
    param_offload: bool = False
    """Keep parameters and gradients in host memory while the role is idle."""
    optimizer_offload: bool = False
    """Keep optimizer state in host memory while the role is idle."""
    recompute_granularity: Literal["full", "selective"] | None = None
    """Activations recomputed in the backward pass: whole layers, attention cores, or null: none."""


@dataclass
class PolicyLossConfig:
    loss_mode: str | None = None
    """Policy loss by its registered name, `rlx algo ls` lists them; null: the algorithm's preset."""
    clip_cov_ratio: float = 0.0002
    """clip_cov: share of the tokens that it leaves out, in (0, 1]."""
    clip_cov_lb: float = 1.0
    """clip_cov: covariance of log-prob and advantage above which a token may be left out."""
    clip_cov_ub: float = 5.0
    """clip_cov: covariance below which it may (> clip_cov_lb)."""
    kl_cov_ratio: float = 0.0002
    """kl_cov: share of the tokens that it penalises, those with the largest covariance, in (0, 1]."""
    ppo_kl_coef: float = 0.1
    """kl_cov: weight of their penalty (>= 0)."""
    dro_beta: float = 1.0
    """dro: weight of the squared log-ratio (> 0)."""


@dataclass
class EntropyCtrlConfig:
    type: Literal["fixed", "target"] = "fixed"
    """fixed: entropy_coeff; target: a coefficient that starts there and is steered so that the entropy does not fall
    below `target` (Skywork-OR1, arXiv 2505.22312)."""
    target: float = 0.2
    """Entropy below which the bonus is on, nats a token (>= 0)."""
    delta: float = 0.005
    """What the coefficient gains in a step below the target and loses in one above it (> 0)."""


@dataclass
class ActorConfig:
    pool: str = "main"
    """Pool of cluster.pools the role runs on."""
    strategy: Literal["fsdp", "megatron"] = "fsdp"
    """Training back end: fsdp (PyTorch FSDP2) or megatron (Megatron-Lite, for the largest models)."""
    ppo_mini_batch_size: int = 256
    """Prompts an optimizer step (>= 1; divides data.train_batch_size)."""
    ppo_micro_batch_size_per_gpu: int | None = None
    """Sequences a forward/backward on each rank; exactly one of this and ppo_max_token_len_per_gpu is set."""
    ppo_max_token_len_per_gpu: int | None = None
    """Tokens a forward/backward on each rank (those of the ranks that split a sequence together >= the longest)."""
    ppo_epochs: int = 1
    """Passes over each batch (>= 1)."""
    shuffle: bool = False
    """Shuffle the prompts before they are split into mini-batches."""
    clip_ratio: float = 0.2
    """PPO clip range epsilon, both sides, in (0, 1)."""
    clip_ratio_low: float | None = None
    """Lower clip range; null: clip_ratio."""
    clip_ratio_high: float | None = None
    """Upper clip range; null: clip_ratio."""
    clip_ratio_c: float = 3.0
    """Dual-clip bound for negative advantages (> 1), arXiv 1912.09729."""
    tau_pos: float = 1.0
    """sapo: how sharply tokens of positive advantage are let go (> 0)."""
    tau_neg: float = 1.05
    """sapo: the same for the others (> 0)."""
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)
    """Which policy loss."""
    loss_agg_mode: (
        Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
        | None
    ) = None
    """How token losses become one number; null: the algorithm's preset."""
    loss_scale_factor: float | None = None
    """Divisor of seq-mean-token-sum-norm; null: data.max_response_length."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus (0: off)."""
    entropy_ctrl: EntropyCtrlConfig = field(default_factory=EntropyCtrlConfig)
    """The weight over the course of the run."""
    positive_lm_coef: float | None = None
    """Weight of the likelihood term on right answers: those with acc > 0, or a reward > 0 where the scorer says no acc
    (>= 0; VAPO, arXiv 2504.05118, section 4.3); null: the algorithm's preset."""
    use_kl_loss: bool | None = None
    """Add kl_loss_coef * KL(policy, reference) to the loss; null: the algorithm's preset."""
    kl_loss_coef: float = 0.001
    """Weight of the KL term (>= 0)."""
    kl_loss_type: Literal[
        "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3",
        "kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+",
        "full",
    ] = "low_var_kl"  # fmt: skip
    """KL estimator, http://joschu.net/blog/kl-approx.html; full: the KL itself, over the whole vocabulary."""
    grad_clip: float = 1.0
    """Largest gradient norm (> 0)."""
    share_prompt: bool = False
    """Compute the prompt that the answers of a group begin with once a micro-batch instead of once an answer, for the
    log-probs and updates of actor, reference and critic; nothing but rounding changes; strategy=fsdp."""
    ulysses_sequence_parallel_size: int = 1
    """Ranks that split every sequence, by attention heads (arXiv 2309.14509); strategy=fsdp."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer."""
    fsdp_config: FsdpConfig = field(default_factory=FsdpConfig)
    """Sharding and precision; strategy=fsdp."""
    megatron: MegatronConfig = field(default_factory=MegatronConfig)
    """Mesh and memory; strategy=megatron."""


@dataclass
class RefConfig:
    pool: str | None = None
    """Pool of the reference; null: the actor's, where it is a snapshot inside the actor's engine."""
    log_prob_micro_batch_size_per_gpu: int | None = None
    """Sequences a forward; null: the actor's micro-batch rule."""
    log_prob_max_token_len_per_gpu: int | None = None
    """Tokens a forward; null: the actor's micro-batch rule."""


@dataclass
class CriticModelConfig:
    path: str | None = None
    """Model the critic's body starts from; null: model.path."""
    enable_gradient_checkpointing: bool | None = None
    """null: model.enable_gradient_checkpointing."""


@dataclass
class CriticConfig:
    enable: bool | None = None
    """null: on when the advantage estimator needs values."""
    pool: str | None = None
    """Pool of the critic; null: the actor's."""
    strategy: Literal["fsdp", "megatron"] | None = None
    """Training back end; null: the actor's."""
    model: CriticModelConfig = field(default_factory=CriticModelConfig)
    """The critic's model; its value head is one linear layer, zero-initialised."""
    ppo_mini_batch_size: int | None = None
    """Prompts an optimizer step; null: the actor's."""
    ppo_micro_batch_size_per_gpu: int | None = None
    """Sequences a forward/backward; null with a null token budget: the actor's rule."""
    ppo_max_token_len_per_gpu: int | None = None
    """Tokens a forward/backward; null with a null micro-batch size: the actor's rule."""
    ppo_epochs: int | None = None
    """Passes over each batch; null: the actor's."""
    cliprange_value: float = 0.5
    """Clip range of the value loss (> 0)."""
    loss_agg_mode: str | None = None
    """null: the actor's."""
    grad_clip: float = 1.0
    """Largest gradient norm (> 0)."""
    ulysses_sequence_parallel_size: int = 1
    """Ranks that split every sequence, by attention heads; strategy=fsdp."""
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-5))
    """Optimizer."""
    fsdp_config: FsdpConfig = field(default_factory=FsdpConfig)
    """Sharding and precision; strategy=fsdp."""
    megatron: MegatronConfig = field(default_factory=MegatronConfig)
    """Mesh and memory; strategy=megatron."""


@dataclass
class WarmupPhase:
    name: str = "skill"
    """Shown in progress and in warmup.jsonl."""
    data: str = "builtin:show-your-work/worked"
    """Demonstrations: `builtin:NAME/PART`."""
    steps: int = 200
    """Optimizer steps (>= 1)."""
    batch_size: int = 32
    """Demonstrations a step (>= 1)."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer of the phase."""


@dataclass
class WarmupConfig:
    phases: list[WarmupPhase] = field(default_factory=list)
    """Supervised phases run before RL on a `builtin:` model; empty: none."""
