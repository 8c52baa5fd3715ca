"""Schema of rewards: which rules score an answer, with which weights, within which limits."""

from dataclasses import dataclass, field
from typing import Any, Literal

from verl_core.config.schema_reward_models import JudgeConfig, RewardModelConfig
from verl_core.config.schema_sandbox import SandboxConfig


@dataclass
class CustomRewardConfig:
    path: str | None = None
    """Python file with the user's reward function; null: the scorer of the row's data_source."""
    name: str = "compute_score"
    """Function in that file: (data_source, solution_str, ground_truth, extra_info=None) -> float | dict."""


@dataclass
class OverlongBufferConfig:
    enable: bool = False
    """Lower the training reward of an answer near the length limit, linearly over the last `len` tokens (DAPO, arXiv
    2503.14476, eq. 13)."""
    len: int = 0
    """Tokens before data.max_response_length in which the penalty grows (in [1, max_response_length] when enabled)."""
    penalty_factor: float = 1.0
    """Penalty at the limit, in units of reward (>= 0)."""


@dataclass
class LengthShapingConfig:
    form: Literal["linear", "cosine", "group"] | None = None
    """Add a term for an answer's length to its training reward: along the curves `right` and `wrong` (arXiv
    2502.03373), or against the prompt's other answers, in [-0.5, 0.5] (Kimi k1.5, arXiv 2501.12599); null: none. Right
    is acc > 0, or a reward > 0 where the scorer says no acc."""
    weight: float = 1.0
    """Factor on the term (>= 0)."""
    right: list[float] = field(default_factory=lambda: [0.0, -0.5])
    """linear, cosine: terms of a right answer, of no tokens and of data.max_response_length, in units of reward."""
    wrong: list[float] = field(default_factory=lambda: [-0.5, 0.0])
    """linear, cosine: terms of a wrong answer, of no tokens and of data.max_response_length, in units of reward."""
    exceeded: float | None = None
    """linear, cosine: term of an answer that fills data.max_response_length; null: where the curve ends."""


@dataclass
class RewardConfig:
    custom_reward_function: CustomRewardConfig = field(default_factory=CustomRewardConfig)
    """The user's reward function."""
    reward_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments passed to the scorer, e.g. {method: flexible} for gsm8k."""
    num_workers: int = 1
    """Scorer processes (>= 1)."""
    timeout_s: float = 10.0
    """Hard wall-clock limit of one score, seconds (> 0)."""
    overlong_buffer: OverlongBufferConfig = field(default_factory=OverlongBufferConfig)
    """Penalty of answers that come near the length limit."""
    length_shaping: LengthShapingConfig = field(default_factory=LengthShapingConfig)
    """Reward for short or long answers."""
    scorers: dict[str, Any] = field(default_factory=dict)
    """Parts of the reward: {name: weight} or {name: {weight: w, keyword of that scorer: value}}. The reward is the sum
    of weight times score; weight 0 only logs. `task` is the rule of the row's data_source, or the user's function;
    other names are those `rlx rewards ls` lists. Empty: {task: 1}."""
    cpu_s: float | None = None
    """Hard limit of one score's processor time, all threads of its process, seconds (> 0); null: only timeout_s."""
    memory_mb: int | None = 4096
    """Address space that scoring may take beyond what a scorer process has after loading its rules, MiB (>= 64); null:
    no limit."""
    max_queue: int = 16384
    """Answers that may wait for a scorer process before further prompts wait to be generated (>= 1)."""
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    """A frozen reward model; the part `reward_model` of `scorers`."""
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    """A language model that judges answers; the part `judge` of `scorers`."""
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    """Where the rule `code` runs programs."""
