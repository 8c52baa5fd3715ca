"""Schema of models that score answers: reward models with one output, and language models that judge in words."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass
class RewardModelConfig:
    path: str | None = None
    """Folder or hub name of a sequence- or token-classification model with one output, such as what
    algorithm.name=reward_model trains and `rlx merge` writes; the part `reward_model` of reward.scorers."""
    pool: str | None = None
    """Pool it computes on; null: the actor's."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """dtype it is kept and computes in; null: bfloat16 on a GPU, float32 on the CPU."""
    param_offload: bool = True
    """Keep its parameters in host memory but for its own passes."""
    micro_batch_size_per_gpu: int | None = None
    """Conversations a forward; null: the actor's micro-batch rule."""
    max_token_len_per_gpu: int | None = None
    """Tokens a forward; null: the actor's micro-batch rule."""
    read_at: Literal["turn_end", "text_end"] = "turn_end"
    """Where the score is read: at the special token that ends the answer, as algorithm.name=reward_model trains it, or
    at the last token of all that its chat template renders."""
    max_length: int | None = None
    """Longest conversation, tokens under its own chat template (>= 1); null: the token budget of a forward, or what its
    positions allow."""
    truncation: Literal["fail", "left", "right", "middle"] = "fail"
    """What to do with a longer one: no score, which is counted, or keep its right end, left end, or both ends."""


@dataclass
class JudgeConfig:
    url: str | None = None
    """Base address of an OpenAI-compatible endpoint, e.g. http://host:8000/v1; the part `judge` of reward.scorers."""
    model: str | None = None
    """Name of the model at that endpoint."""
    api_key_env: str | None = None
    """Environment variable that holds the endpoint's key; null: none is sent."""
    engine: Literal["hf"] | None = None
    """A judge of one's own in place of `url`: hf generates on the CPU of the controller's machine."""
    path: str | None = None
    """Folder or hub name of that judge; with `engine`."""
    instruction: str = (
        "Judge how well the answer does what the question asks: whether it is correct, complete and clear."
    )
    """What is judged, told to the judge before question and answer."""
    instruction_file: str | None = None
    """UTF-8 file whose text takes the place of `instruction`."""
    show_ground_truth: bool = True
    """Show the judge the row's ground truth where there is one."""
    scale: tuple[float, float] = (0.0, 10.0)
    """Lowest and highest number the judge may give; they become the rewards 0 and 1."""
    labels: dict[str, float] = field(default_factory=dict)
    """Words the judge chooses from in place of a number, and the reward of each, e.g. {good: 1, poor: 0}."""
    temperature: float = 0.0
    """Sampling temperature of the judge (>= 0)."""
    max_tokens: int = 512
    """Tokens a judgement may have, its reasons included (>= 1)."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Further fields of each request to the endpoint, e.g. {chat_template_kwargs: {enable_thinking: false}}; null takes
    out one that is there, e.g. {max_tokens: null, max_completion_tokens: 512}."""
    max_concurrent: int = 32
    """Requests under way at a time (>= 1)."""
    timeout_s: float = 60.0
    """Longest time of one request, seconds (> 0)."""
    retries: int = 4
    """Further attempts after a refusal for load (429), a server's error, a lost connection or a timeout (>= 0)."""
    max_requests: int | None = None
    """Requests that may be sent in all, retries included (>= 1); answers beyond have no score. null: no limit."""
    cache: str | None = None
    """SQLite file of judgements; several runs may share one. null: judge_cache.sqlite in the run directory; none for
    `rlx eval`."""
