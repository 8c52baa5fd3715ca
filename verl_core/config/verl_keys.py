"""The table of veRL's keys that are not rlx's keys: renamed, always so here, or without a counterpart.

Paths stand without veRL's prefix `actor_rollout_ref.`. A key in none of the tables has the same name in both.
"""

from verl_core.config.verl_fixed import FIXED

__all__ = ["FIXED", "RENAMED", "RENAMED_VALUES", "SUBTREES"]

RENAMED = {
    "rollout.name": "rollout.engine",
    "algorithm.rollout_correction.bypass_mode": "rollout.old_log_prob",
    "model_engine": "actor.strategy",
    "model.lora.rank": "model.lora_rank",
    "model.lora.alpha": "model.lora_alpha",
    "model.lora.target_modules": "model.target_modules",
    "model.lora.exclude_modules": "model.exclude_modules",
    "model.lora.adapter_path": "model.lora_adapter_path",
    "reward.reward_kwargs.overlong_buffer_cfg": "reward.overlong_buffer",
    "distillation.distillation_loss": "distillation",
    "rollout.prompt_length": "data.max_prompt_length",
    "rollout.response_length": "data.max_response_length",
    "trainer.nnodes": "cluster.nnodes",
    "trainer.n_gpus_per_node": "cluster.n_gpus_per_node",
    "trainer.max_actor_ckpt_to_keep": "trainer.max_ckpt_to_keep",
    "trainer.default_hdfs_dir": "trainer.checkpoint_url",
    "actor.checkpoint.async_save": "trainer.async_save",
    "critic.checkpoint.async_save": "trainer.async_save",
    "trainer.v1.trainer_mode": "trainer.mode",
    "data.tokenizer": "model.tokenizer_path",
    "data.trust_remote_code": "model.trust_remote_code",
    "custom_reward_function": "reward.custom_reward_function",
    "actor.use_prefix_grouper": "actor.share_prompt",
    "actor.optim.clip_grad": "actor.grad_clip",
    "critic.optim.clip_grad": "critic.grad_clip",
    "actor.optim.warmup_style": "actor.optim.lr_scheduler_type",
    "critic.optim.warmup_style": "critic.optim.lr_scheduler_type",
    **{
        f"{role}.{old}": f"{role}.{new}"
        for role in ("actor", "critic")
        for old, new in {
            "optim.lr_decay_style": "optim.lr_scheduler_type",
            "fsdp_config.ulysses_sequence_parallel_size": "ulysses_sequence_parallel_size",
            "megatron.override_transformer_config.recompute_granularity": "megatron.recompute_granularity",
        }.items()
    },
    "reward_model.overlong_buffer": "reward.overlong_buffer",
    "reward_model.reward_kwargs.overlong_buffer_cfg": "reward.overlong_buffer",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.num_workers": "reward.num_workers",
    "reward.reward_model.model_path": "reward.reward_model.path",
    "reward_model.model_path": "reward.reward_model.path",
    "reward_model.model.path": "reward.reward_model.path",
    "reward_model.model.trust_remote_code": "model.trust_remote_code",
    "reward_model.model.fsdp_config.param_offload": "reward.reward_model.param_offload",
    "reward_model.micro_batch_size_per_gpu": "reward.reward_model.micro_batch_size_per_gpu",
    "reward_model.forward_max_token_len_per_gpu": "reward.reward_model.max_token_len_per_gpu",
    "reward_model.max_length": "reward.reward_model.max_length",
    **{
        f"{section}.{old}": f"reward.sandbox.{new}"
        for section in ("reward.sandbox_fusion", "sandbox_fusion")
        for old, new in (("url", "url"), ("max_concurrent", "max_concurrent"), ("memory_limit_mb", "memory_mb"))
    },
    "ray_kwargs.ray_init.address": "cluster.ray_address",
    "global_profiler.steps": "trainer.profile_steps",
    "actor.profiler.ranks": "trainer.profile_ranks",
}

# values that have another name here
RENAMED_VALUES: dict[tuple[str, str | bool], str] = {
    **{
        (f"{role}.{key}", theirs): ours
        for role in ("actor", "critic")
        for key, theirs, ours in (
            ("strategy", "fsdp2", "fsdp"),
            ("optim.optimizer", "AdamW", "adamw"),
            ("optim.optimizer", "adam", "adamw"),
            ("fsdp_config.model_dtype", "fp32", "float32"),
            ("fsdp_config.model_dtype", "bf16", "bfloat16"),
            ("fsdp_config.dtype", "fp32", "float32"),
            ("fsdp_config.dtype", "bf16", "bfloat16"),
        )
    },
    ("actor.strategy", "dp"): "fsdp",
    ("rollout.dtype", "float"): "float32",
    ("rollout.old_log_prob", True): "rollout",
    ("rollout.old_log_prob", False): "recompute",
    # names before veRL 0.7
    ("algorithm.rollout_correction.rollout_rs", "token"): "token_k1",
    ("algorithm.rollout_correction.rollout_rs", "sequence"): "seq_sum_k1",
    ("algorithm.rollout_correction.rollout_rs", "geometric"): "seq_mean_k1",
    ("algorithm.adv_estimator", "grpo_vectorized"): "grpo",
    ("algorithm.adv_estimator", "rloo_vectorized"): "rloo",
    ("algorithm.filter_groups.metric", "seq_reward"): "reward",
    ("algorithm.filter_groups.metric", "seq_final_reward"): "reward",
}

_SCORES_BY_PASS = (
    "a reward model needs no engine: it scores in a pass like the reference's, by the keys of reward.reward_model; "
    "one that writes its judgement is reward.judge"
)
_PROFILE = "trainer.profile_steps takes torch's traces of all roles on trainer.profile_ranks; see docs/performance.md"

# Whole blocks. A switch in them that is off asks for nothing and is accepted.
SUBTREES = {
    "data.custom_cls": "own data sets come as files; see docs/data.md",
    "data.sampler": "the order follows from data.shuffle and data.seed; a sampler of your own is data.curriculum.path",
    "data.datagen": "not built",
    "data.mm_processor_kwargs": "no vision or audio models",
    "data.image_key": "no vision or audio models",
    "data.video_key": "no vision or audio models",
    "data.audio_key": "no vision or audio models",
    "data.image_patch_size": "no vision or audio models",
    "data.return_multi_modal_inputs": "no vision or audio models",
    "data.tool_config_path": "tools are not built yet",
    "data.function_tool_path": "tools are not built yet",
    "model.fused_kernel_options": "log-probs are always computed in chunks, without whole logits",
    "model.tiled_mlp": "not built",
    "model.mtp": "multi-token prediction is not built",
    "model.lora": "the adapter's keys are model.lora_rank, lora_alpha, target_modules and exclude_modules",
    "actor.checkpoint": "checkpoints always hold model, optimizer and the rest; see docs/architecture.md",
    "critic.checkpoint": "checkpoints always hold model, optimizer and the rest; see docs/architecture.md",
    "actor.router_replay": "not built",
    "actor.profiler": _PROFILE,
    "critic.profiler": _PROFILE,
    "ref.router_replay": "not built",
    "critic.model.tiled_mlp": "not built",
    "critic.model.mtp": "multi-token prediction is not built",
    "critic.model.fused_kernel_options": "log-probs are always computed in chunks, without whole logits",
    "ref.profiler": _PROFILE,
    "rollout.profiler": _PROFILE,
    "global_profiler": _PROFILE,
    "rollout.multi_turn": "tools and several turns are not built yet",
    "rollout.agent": "agent loops other than one turn are not built yet",
    "rollout.checkpoint_engine": "how weights reach the engine is weights.type",
    "rollout.disaggregation": "not built",
    "rollout.trace": "answers are in the run directory's rollouts/",
    "rollout.prometheus": "not built",
    "rollout.engine_kwargs": "not built",
    "rollout.skip": "not built",
    "rollout.mtp": "multi-token prediction is not built",
    "rollout.qat": "training for low precision is not built",
    "rollout.limit_images": "no vision or audio models",
    "rollout.cudagraph_capture_sizes": "left to the engine; rollout.enforce_eager=true captures none",
    "rollout.update_weights_bucket_megabytes": "how weights reach the engine is weights.type",
    "critic.fsdp": "set critic.fsdp_config",
    "critic.model.fsdp_config": "set critic.fsdp_config",
    "reward.reward_manager": "set reward.custom_reward_function.path",
    "reward.reward_model.rollout": _SCORES_BY_PASS,
    "reward_model.rollout": _SCORES_BY_PASS,
    "reward_model": "the reward model's keys are those of reward.reward_model; see docs/rewards/models.md",
    "transfer_queue": "rlx needs no transfer queue",
    "trainer.npu_profile": _PROFILE,
    "async_training": "asynchronous modes are not built yet; trainer.mode chooses one",
    "trainer.v1": "asynchronous modes are not built yet; trainer.mode chooses one",
    "skip": "not built",
    "ray_kwargs": "join a cluster with cluster.ray_address",
}
