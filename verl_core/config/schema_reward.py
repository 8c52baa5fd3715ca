"""Schema of rewards: which rules score an answer, with which weights, within which limits."""

from dataclasses import dataclass, field
from typing import Any

from verl_core.config.schema_reward_models import JudgeConfig, RewardModelConfig


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
    scorers: dict[str, Any] = field(default_factory=dict)
    """Parts of the reward: {name: weight} or {name: {weight: w, keyword of that scorer: value}}. The reward is the sum of
    weight times score; weight 0 only logs. `task` is the rule of the row's data_source, or the user's function; other
    names are those `rlx rewards ls` lists. Empty: {task: 1}."""
    cpu_s: float | None = None
    """Hard limit of one score's processor time, all threads of its process, seconds (> 0); null: only timeout_s."""
    memory_mb: int | None = 4096
    """Address space that scoring may take beyond what a scorer process has after loading its rules, MiB (>= 64); null:
    no limit."""
    max_queue: int = 16384
    """Answers that may wait for a scorer process; whoever has more to score waits until there is room (>= 1)."""
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    """A frozen reward model; the part `reward_model` of `scorers`."""
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    """A language model that judges answers; the part `judge` of `scorers`."""
