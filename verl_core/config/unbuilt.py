"""What a configuration asks for that this release plans and dry-runs, but does not run yet."""

from collections.abc import Iterator

from verl_core.config.catalogue import entry
from verl_core.config.effective import strategies, uses_rollout
from verl_core.config.schema import RlxConfig


def unbuilt(config: RlxConfig) -> Iterator[str]:
    """A line for each part of an effective configuration that comes with a later release, with what runs today."""
    c = config
    if not entry("algorithm", c.algorithm.name).built:
        yield _later(f"algorithm.name={c.algorithm.name}", "ppo, grpo, dr_grpo, rloo and reinforce_plus_plus run today")
    if uses_rollout(c) and not entry("engine", c.rollout.engine).built:
        yield _later(f"rollout.engine={c.rollout.engine}", "rollout.engine=hf runs today")
    if uses_rollout(c) and c.rollout.engine == "hf" and not entry("transport", str(c.weights.type)).built:
        yield _later(f"weights.type={c.weights.type}", "inplace runs today")
    if "megatron" in strategies(c):
        yield _later("strategy=megatron", "actor.strategy=fsdp runs today")
    if c.algorithm.filter_groups.enable and entry("algorithm", c.algorithm.name).built:
        yield _later("algorithm.filter_groups.enable=true", "false runs today")
    if c.model.lora_rank:
        yield _later(f"model.lora_rank={c.model.lora_rank}", "0 runs today")
    for key, value, works in (
        ("model.use_liger", c.model.use_liger, False),
        ("model.enable_activation_offload", c.model.enable_activation_offload, False),
        ("model.lora_adapter_path", c.model.lora_adapter_path, None),
        ("actor.ulysses_sequence_parallel_size", c.actor.ulysses_sequence_parallel_size, 1),
        ("critic.ulysses_sequence_parallel_size", c.critic.ulysses_sequence_parallel_size, 1),
        ("actor.fsdp_config.fsdp_size", c.actor.fsdp_config.fsdp_size, -1),
        ("critic.fsdp_config.fsdp_size", c.critic.fsdp_config.fsdp_size, -1),
    ):
        if value != works:
            shown = str(works).lower() if works is not None else "null"
            yield _later(f"{key}={str(value).lower() if isinstance(value, bool) else value}", f"{shown} runs today")


def _later(what: str, today: str) -> str:
    return f"{what} comes with a later release of rlx; {today}"
