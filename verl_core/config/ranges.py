"""Ranges of single numbers, as the schema's docstrings give them."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from verl_core.config.schema import RlxConfig
from verl_core.config.typed import plain

# A billion is beyond every use of a count and far below what overflows: a slip of the keyboard is refused, not tried.
_COUNT, _NON_NEGATIVE, _POSITIVE, _SHARE, _OPEN_SHARE = "[1, 1e9]", "[0, inf)", "(0, inf)", "[0, 1]", "(0, 1]"
_GROUP, _PROCESSES = "[1, 65536]", "[1, 1024]"
_SEED = "[0, 9223372036854775808)"  # 63 bits: what torch's generators take

# key (`*` is a section or list position of any name): interval, and the values outside it that have a meaning
RANGES: dict[str, tuple[str, tuple[float, ...]]] = {
    "data.train_max_samples": (_COUNT, (-1,)),
    "data.val_max_samples": (_COUNT, (-1,)),
    "data.mixture.*.weight": (_POSITIVE, ()),
    "data.mixture.*.max_samples": (_COUNT, (-1,)),
    "data.curriculum.drop_solved": ("[0, 1e9]", ()),
    "data.max_prompt_length": (_COUNT, ()),
    "data.max_response_length": (_COUNT, ()),
    "data.train_batch_size": (_COUNT, ()),
    "data.seed": (_SEED, ()),
    "model.lora_rank": ("[0, 65536]", ()),
    "model.lora_alpha": (_COUNT, ()),
    "*.ulysses_sequence_parallel_size": (_COUNT, ()),
    "*.fsdp_config.fsdp_size": (_COUNT, (-1,)),
    "*.fsdp_config.tensor_parallel_size": (_COUNT, ()),
    "*.fsdp_config.expert_parallel_size": (_COUNT, ()),
    "*.tensor_model_parallel_size": (_COUNT, ()),
    "*.pipeline_model_parallel_size": (_COUNT, ()),
    "*.virtual_pipeline_model_parallel_size": (_COUNT, ()),
    "*.context_parallel_size": (_COUNT, ()),
    "*.expert_model_parallel_size": (_COUNT, ()),
    "*.expert_tensor_parallel_size": (_COUNT, ()),
    "actor.clip_ratio": ("(0, 1)", ()),
    "actor.clip_ratio_low": ("(0, 1)", ()),
    "actor.clip_ratio_high": (_POSITIVE, ()),
    "actor.clip_ratio_c": ("(1, inf)", ()),
    "actor.tau_pos": (_POSITIVE, ()),
    "actor.tau_neg": (_POSITIVE, ()),
    "actor.positive_lm_coef": (_NON_NEGATIVE, ()),
    "actor.policy_loss.clip_cov_ratio": (_OPEN_SHARE, ()),
    "actor.policy_loss.clip_cov_lb": (_NON_NEGATIVE, ()),
    "actor.policy_loss.clip_cov_ub": (_POSITIVE, ()),
    "actor.policy_loss.kl_cov_ratio": (_OPEN_SHARE, ()),
    "actor.policy_loss.ppo_kl_coef": (_NON_NEGATIVE, ()),
    "actor.policy_loss.dro_beta": (_POSITIVE, ()),
    "actor.loss_scale_factor": (_POSITIVE, ()),
    "actor.entropy_ctrl.target": (_NON_NEGATIVE, ()),
    "actor.entropy_ctrl.delta": (_POSITIVE, ()),
    "actor.kl_loss_coef": (_NON_NEGATIVE, ()),
    "critic.cliprange_value": (_POSITIVE, ()),
    "*.ppo_mini_batch_size": (_COUNT, ()),
    "*.ppo_micro_batch_size_per_gpu": (_COUNT, ()),
    "*.ppo_max_token_len_per_gpu": (_COUNT, ()),
    "*.log_prob_micro_batch_size_per_gpu": (_COUNT, ()),
    "*.log_prob_max_token_len_per_gpu": (_COUNT, ()),
    "*.ppo_epochs": (_COUNT, ()),
    "*.grad_clip": (_POSITIVE, ()),
    "*.optim.lr": (_POSITIVE, ()),
    "*.optim.muon_lr": (_POSITIVE, ()),
    "*.optim.muon_momentum": ("[0, 1)", ()),
    "*.optim.betas[*]": ("[0, 1)", ()),
    "*.optim.eps": (_POSITIVE, ()),
    "*.optim.weight_decay": (_NON_NEGATIVE, ()),
    "*.optim.lr_warmup_steps": (_NON_NEGATIVE, (-1,)),
    "*.optim.lr_warmup_steps_ratio": (_SHARE, ()),
    "*.optim.min_lr_ratio": (_SHARE, ()),
    "rollout.n": (_GROUP, ()),
    "rollout.temperature": (_POSITIVE, ()),
    "rollout.top_p": (_OPEN_SHARE, ()),
    "rollout.top_k": (_COUNT, (-1,)),
    "rollout.max_num_seqs": (_COUNT, ()),
    "rollout.max_model_len": (_COUNT, ()),
    "rollout.gpu_memory_utilization": ("(0, 1)", ()),
    "rollout.max_num_batched_tokens": (_COUNT, ()),
    "weights.bucket_mb": ("[1, 65536]", ()),
    "rollout.restarts": ("[0, 1e9]", ()),
    "rollout.stall_s": (_POSITIVE, ()),
    "rollout.val_kwargs.temperature": (_NON_NEGATIVE, ()),
    "rollout.val_kwargs.top_p": (_OPEN_SHARE, ()),
    "rollout.val_kwargs.top_k": (_COUNT, (-1,)),
    "rollout.val_kwargs.n": (_GROUP, ()),
    "algorithm.gamma": (_SHARE, ()),
    "algorithm.lam": (_SHARE, ()),
    "algorithm.lam_critic": (_SHARE, ()),
    "algorithm.lam_alpha": (_POSITIVE, ()),
    "algorithm.pf_ppo.weight_pow": (_NON_NEGATIVE, ()),
    "algorithm.prime.beta": (_POSITIVE, ()),
    "algorithm.prime.process_coef": (_NON_NEGATIVE, ()),
    "algorithm.prime.outcome_coef": (_NON_NEGATIVE, ()),
    "algorithm.prime.gamma": (_SHARE, ()),
    "algorithm.prime.accuracy_lower_bound": (_SHARE, ()),
    "algorithm.prime.accuracy_upper_bound": (_SHARE, ()),
    "distillation.topk": (_COUNT, ()),
    "distillation.coef": (_POSITIVE, ()),
    "distillation.loss_max_clamp": (_POSITIVE, ()),
    "distillation.log_prob_min_clamp": ("(-inf, 0)", ()),
    "algorithm.preference.beta": (_POSITIVE, ()),
    "algorithm.preference.label_smoothing": ("[0, 0.5]", ()),
    "algorithm.preference.simpo_gamma": (_NON_NEGATIVE, ()),
    "algorithm.preference.orpo_weight": (_NON_NEGATIVE, ()),
    "algorithm.preference.desirable_weight": (_NON_NEGATIVE, ()),
    "algorithm.preference.undesirable_weight": (_NON_NEGATIVE, ()),
    "algorithm.preference.sppo_eta": (_POSITIVE, ()),
    "algorithm.preference.ref_update_freq": ("[0, 1e9]", ()),
    "algorithm.kl_ctrl.kl_coef": (_NON_NEGATIVE, ()),
    "algorithm.kl_ctrl.horizon": (_COUNT, ()),
    "algorithm.kl_ctrl.target_kl": (_POSITIVE, ()),
    "algorithm.rollout_correction.rollout_is_threshold": (_POSITIVE, ()),
    "algorithm.rollout_correction.rollout_rs_threshold": (_POSITIVE, ()),
    "reward.num_workers": (_PROCESSES, ()),
    "reward.timeout_s": (_POSITIVE, ()),
    "reward.cpu_s": (_POSITIVE, ()),
    "reward.memory_mb": ("[64, 1e9]", ()),
    "reward.max_queue": (_COUNT, ()),
    "reward.sandbox.run_timeout_s": (_POSITIVE, ()),
    "reward.sandbox.timeout_s": (_POSITIVE, ()),
    "reward.sandbox.memory_mb": ("[64, 1048576]", ()),
    "reward.sandbox.output_kb": ("[1, 1048576]", ()),
    "reward.sandbox.tmp_mb": ("[1, 1048576]", ()),
    "reward.sandbox.max_concurrent": (_PROCESSES, ()),
    "reward.sandbox.retries": ("[0, 1e9]", ()),
    "reward.overlong_buffer.penalty_factor": (_NON_NEGATIVE, ()),
    "reward.length_shaping.weight": (_NON_NEGATIVE, ()),
    "reward.length_shaping.right[*]": ("[-1e9, 1e9]", ()),
    "reward.length_shaping.wrong[*]": ("[-1e9, 1e9]", ()),
    "reward.length_shaping.exceeded": ("[-1e9, 1e9]", ()),
    "reward.reward_model.micro_batch_size_per_gpu": (_COUNT, ()),
    "reward.reward_model.max_token_len_per_gpu": (_COUNT, ()),
    "reward.reward_model.max_length": (_COUNT, ()),
    "reward.judge.scale[*]": ("[-1e9, 1e9]", ()),
    "reward.judge.temperature": (_NON_NEGATIVE, ()),
    "reward.judge.max_tokens": (_COUNT, ()),
    "reward.judge.max_concurrent": ("[1, 65536]", ()),
    "reward.judge.timeout_s": (_POSITIVE, ()),
    "reward.judge.retries": ("[0, 1000]", ()),
    "reward.judge.max_requests": (_COUNT, ()),
    "algorithm.filter_groups.max_num_gen_batches": ("[0, 1e9]", ()),
    "cluster.nproc": (_COUNT, ()),
    "cluster.nnodes": (_COUNT, ()),
    "cluster.n_gpus_per_node": (_COUNT, ()),
    "cluster.pools.*.nodes": (_COUNT, ()),
    "cluster.pools.*.gpus": (_COUNT, ()),
    "launch.gpus_per_node": (_COUNT, ()),
    "launch.cpus_per_rank": (_COUNT, ()),
    "launch.memory_per_rank": (_COUNT, ()),
    "launch.slurm.save_before_s": ("[30, 65535]", ()),
    "launch.*.max_restarts": ("[0, 1e9]", ()),
    "warmup.phases[*].steps": (_COUNT, ()),
    "warmup.phases[*].batch_size": (_COUNT, ()),
    "trainer.seed": (_SEED, ()),
    "trainer.num_threads": (_COUNT, ()),
    "trainer.total_epochs": (_COUNT, ()),
    "trainer.total_training_steps": (_COUNT, ()),
    "trainer.save_freq": (_NON_NEGATIVE, (-1,)),
    "trainer.test_freq": (_NON_NEGATIVE, (-1,)),
    "trainer.critic_warmup": (_NON_NEGATIVE, ()),
    "trainer.max_ckpt_to_keep": (_COUNT, ()),
    "trainer.log_rollouts": (_NON_NEGATIVE, (-1,)),
    "trainer.parity_threshold": (_POSITIVE, ()),
    "trainer.profile_steps[*]": (_COUNT, ()),
    "trainer.profile_ranks[*]": (_NON_NEGATIVE, ()),
}

VLLM_TEMPERATURES = (0.01, 2.0)
"""vLLM 0.26 raises what is colder to the first, 0 excepted, and refuses what is hotter than the second."""
VLLM_LORA_RANK = 512
"""The largest rank of an adapter that vLLM 0.26 has room for."""

_PATTERNS = [
    (re.compile(re.escape(pattern).replace(r"\*", r".+")), interval, special)
    for pattern, (interval, special) in RANGES.items()
]


def out_of_range(config: RlxConfig) -> Iterator[tuple[str, str]]:
    """(key, the range it must be in) of every number that is outside its range."""
    for key, value in _numbers(plain(config), ""):
        found = bounds(key)
        if found and value not in found[1] and not _inside(value, found[0]):
            yield key, _words(*found)


@cache
def bounds(key: str) -> tuple[str, tuple[float, ...]] | None:
    """A number's interval, and the values outside it that have a meaning; None for a key without a range."""
    return next(((interval, special) for pattern, interval, special in _PATTERNS if pattern.fullmatch(key)), None)


def range_of(key: str) -> str | None:
    """The range of a key's number or numbers, e.g. `[1, 1e9] or -1`."""
    found = bounds(key) or bounds(f"{key}[0]")
    return _words(*found) if found else None


def _words(interval: str, special: tuple[float, ...]) -> str:
    return interval + "".join(f" or {number}" for number in special)


def _inside(value: float, interval: str) -> bool:
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    return (value >= low if interval[0] == "[" else value > low) and (
        value <= high if interval[-1] == "]" else value < high
    )


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _numbers(item, f"{path}[{i}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value
