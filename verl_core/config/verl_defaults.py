"""veRL's defaults where rlx's are others, and the names that its supervised trainer has for the same things."""

from typing import Any

# rlx's key: the value that veRL's trainer takes when a script does not set it
PPO_DEFAULTS: dict[str, Any] = {
    "model.path": "~/models/deepseek-llm-7b-chat",
    "data.train_files": "~/data/rlhf/gsm8k/train.parquet",
    "data.val_files": "~/data/rlhf/gsm8k/test.parquet",
    "rollout.tensor_model_parallel_size": 2,
    "actor.clip_ratio_low": 0.2,
    "actor.clip_ratio_high": 0.2,
    "algorithm.filter_groups.metric": "reward",
    "reward.num_workers": 8,
    "cluster.n_gpus_per_node": 8,
    "trainer.logger": ["console", "wandb"],
}
SFT_DEFAULTS: dict[str, Any] = {
    "data.train_batch_size": 256,
    "trainer.total_epochs": 4,
    "cluster.n_gpus_per_node": 8,
    "trainer.logger": ["console", "wandb"],
}

# null here, and decided by the algorithm's preset; in veRL the same whatever the estimator
PARTS: dict[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "algorithm.use_pf_ppo": False,
    "algorithm.filter_groups.enable": False,
    "actor.loss_agg_mode": "token-mean",
    "actor.policy_loss.loss_mode": "vanilla",
    "actor.use_kl_loss": False,
}

# where the script enables distillation
DISTILLATION_DEFAULTS: dict[str, Any] = {
    "distillation.loss_mode": "k3",
    "distillation.use_policy_gradient": False,
    "distillation.use_task_rewards": True,
}

TOKEN_BUDGETS = {"actor": 16384, "critic": 32768}
"""Tokens a micro-batch with use_dynamic_bsz, when the script names none."""
SFT_TOKEN_BUDGET = 8192

LOGGERS = {"file": "jsonl"}
"""Trackers with another name here."""

MEGATRON_CONFIGS = ("ppo_megatron_trainer",)
"""Configuration files of veRL that stand for its Megatron back end."""

# a key, or the start of one, of the supervised trainers: where the PPO trainer has the same
SFT_AS_PPO = {
    "model.partial_pretrain": "model.path",
    "model.strategy": "actor.strategy",
    "model.fsdp_config": "actor.fsdp_config",
    "optim.lr_scheduler": "actor.optim.lr_scheduler_type",
    "optim.warmup_steps_ratio": "actor.optim.lr_warmup_steps_ratio",
    "optim": "actor.optim",
    "engine.strategy": "actor.strategy",
    "engine.ulysses_sequence_parallel_size": "actor.ulysses_sequence_parallel_size",
    **{
        f"engine.{name}": f"actor.megatron.{name}"
        for name in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "virtual_pipeline_model_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
            "use_mbridge",
            "vanilla_mbridge",
            "override_transformer_config",
        )
    },
    "engine": "actor.fsdp_config",
    "ulysses_sequence_parallel_size": "actor.ulysses_sequence_parallel_size",
    "use_remove_padding": "model.use_remove_padding",
    "data.micro_batch_size_per_gpu": "actor.ppo_micro_batch_size_per_gpu",
    "data.max_token_len_per_gpu": "actor.ppo_max_token_len_per_gpu",
    "data.use_dynamic_bsz": "actor.use_dynamic_bsz",
}

SFT_DATA = (
    *("train_files", "val_files", "train_batch_size", "train_max_samples", "val_max_samples", "seed", "shuffle"),
    "messages_key",
)
"""Keys of the supervised trainers' data that mean the same here."""
