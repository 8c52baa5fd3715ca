"""The models that GPU benchmarks train, random weights at true shapes, and what `rlx plan` expects of an update."""

from __future__ import annotations

from transformers import Qwen2Config

from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.planning import gpus
from verl_core.planning.components import Components
from verl_core.planning.estimate import estimate
from verl_core.planning.plan import shapes_of

VOCABULARY = 151936
SHAPES = {  # Qwen2.5's: hidden, feed-forward, layers, heads, key-value heads
    "0.5B": (896, 4864, 24, 14, 2),
    "1.5B": (1536, 8960, 28, 12, 2),
    "3B": (2048, 11008, 36, 16, 2),
    "4B": (2560, 9728, 36, 32, 8),  # Qwen3-4B's widths, for the adapter
}


def config(shape: str) -> Qwen2Config:
    D, F, L, H, K = SHAPES[shape]
    return Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=D, intermediate_size=F, num_hidden_layers=L, num_attention_heads=H,
        num_key_value_heads=K, tie_word_embeddings=True, max_position_embeddings=32768,
        architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip


def plan_words(
    folder: str, micro: int, tokens: int, length: int, checkpointing: str | None = None, lora: int = 0
) -> list[str]:
    """A configuration whose optimizer step is `micro` micro-batches of `tokens` packed tokens, all but one of a
    sequence's `length` trained."""
    prompts = micro * tokens // length // 2
    return [
        f"model.path={folder}",
        f"model.enable_gradient_checkpointing={str(bool(checkpointing)).lower()}",
        f"model.recompute_granularity={checkpointing or 'full'}",
        f"model.lora_rank={lora}",
        "rollout.engine=hf",
        "rollout.n=2",
        f"data.train_batch_size={prompts}",
        f"actor.ppo_mini_batch_size={prompts}",
        "actor.ppo_micro_batch_size_per_gpu=null",
        f"actor.ppo_max_token_len_per_gpu={tokens}",
        "data.max_prompt_length=1",
        f"data.max_response_length={length - 1}",
        "actor.fsdp_config.param_offload=false",
        "actor.fsdp_config.optimizer_offload=false",
    ]


def planned_peak(words: list[str]) -> float:
    """GB that `rlx plan --gpu H200` expects to be allocated at the peak of the update."""
    e = effective(resolve("gsm8k-grpo", words).config)
    plan = estimate(e, shapes_of(e), gpus.named("H200"))
    used: Components = next(p for p in plan.phases if (p.role, p.phase) == ("actor", "update")).memory
    allocated = (used.parameters, used.gradients, used.optimizer, used.activations, used.logits, used.communication)
    return sum(allocated) / 1e9
