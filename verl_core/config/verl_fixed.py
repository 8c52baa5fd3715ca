"""veRL's single keys that rlx has no key for: what it does anyway, or which key does the same.

Paths stand without veRL's prefix `actor_rollout_ref.`.
"""

_AS_ACTOR = "the reference shares the actor's back end and mesh"
_BUDGET = "packing to a token budget is chosen by setting {}, in place of the micro-batch size"
_PACKED = "rlx always packs sequences without padding"
_ENTROPY = "entropy is always logged; the bonus is actor.entropy_coeff"
_SEEDED = "every random draw follows from trainer.seed"
_HF_WEIGHTS = "weights are always read and written in Hugging Face's format"
_RECOMPUTE = "whole layers are recomputed one by one; see recompute_granularity"
_MANAGER = "reward.scorers or reward.custom_reward_function scores an answer, reward.overlong_buffer penalises length"
_SCORING_POOL = "give it GPUs of its own with cluster.pools and reward.reward_model.pool"
_ONE_NAME = "set it once, under model"
_SAME_MODEL = "the critic's code, tokenizer and overrides are those under model"

# key: (the values that are accepted because rlx does just that, what rlx does or which key does the same)
FIXED: dict[str, tuple[tuple, str]] = {
    "data.gen_batch_size": ((None,), "rlx generates data.train_batch_size prompts a step"),
    "data.val_batch_size": ((None,), "validation goes through the engine in one call, rollout.max_num_seqs at a time"),
    "data.validation_shuffle": ((False,), "validation keeps the file's order"),
    "data.dataloader_num_workers": ((), "prompts are tokenised once at loading, without worker processes"),
    "data.filter_overlong_prompts_workers": ((), "filtering needs no worker processes"),
    "data.return_raw_chat": ((True, False), "messages are always kept"),
    "data.return_raw_input_ids": ((True, False), "token ids are always kept"),
    "data.return_full_prompt": ((True, False), "messages are always kept"),
    "data.use_shm": ((False,), "put the files on /dev/shm yourself and name that path in data.train_files"),
    "model.use_remove_padding": ((True,), _PACKED),
    "model.use_shm": ((False,), "put the model on /dev/shm yourself and name that path in model.path"),
    "model.hf_config_path": ((None,), "override single fields with model.override_config"),
    "model.external_lib": ((None,), "packages add themselves through the entry-point group rlx.plugins"),
    "model.lora.type": (("lora",), "adapters are LoRA's"),
    "model.lora.merge": ((True, False), "how an adapter reaches the engine follows from weights.type"),
    "model.lora.dropout": ((0, 0.0), "adapters have no dropout"),
    "model.use_fused_kernels": ((False, True), "log-probs are always computed in chunks, without whole logits"),
    "actor.use_dynamic_bsz": ((False,), _BUDGET.format("actor.ppo_max_token_len_per_gpu")),
    "actor.ppo_micro_batch_size": ((None,), "set actor.ppo_micro_batch_size_per_gpu"),
    "actor.data_loader_seed": ((), _SEEDED),
    "actor.calculate_entropy": ((True, False), _ENTROPY),
    "actor.calculate_sum_pi_squared": ((False,), "no advantage estimator here needs it"),
    "actor.use_torch_compile": ((True, False), "log-probs have kernels of their own, the loss needs no compiling"),
    "actor.freeze_vision_tower": ((False,), "no vision models"),
    "actor.entropy_from_logits_with_chunking": ((True, False), "entropy is always computed in chunks"),
    "actor.entropy_checkpointing": ((True, False), "entropy is always recomputed in the backward pass"),
    "actor.pad_to_length": ((False,), _PACKED),
    **{
        f"{role}.fsdp_config.{name}": rule
        for role in ("actor", "critic")
        for name, rule in {
            "offload_policy": ((False,), "set param_offload and optimizer_offload beside it"),
            "forward_prefetch": ((True, False), "left to FSDP2"),
            "use_orig_params": ((True, False), "FSDP2 always keeps them"),
            "wrap_policy": ((None,), "every decoder layer is sharded by itself"),
            "mixed_precision": ((None,), "set dtype beside it"),
            "seed": ((), _SEEDED),
            "full_determinism": ((), "set trainer.deterministic"),
            "forward_only": ((), "roles that train do both"),
            "strategy": (("fsdp", "fsdp2"), f"set {role}.strategy"),
            "entropy_from_logits_with_chunking": ((True, False), "entropy is always computed in chunks"),
            "entropy_checkpointing": ((True, False), "entropy is always recomputed in the backward pass"),
            "use_no_sync_for_gradient_accumulation": ((True, False), "left to the training back end"),
            "qat": ((), "training for low precision is not built"),
            "turbo_config": ((), "fsdp_turbo is another back end"),
        }.items()
    },
    **{
        f"{role}.megatron.{name}": rule
        for role in ("actor", "critic")
        for name, rule in {
            "grad_offload": ((True, False), "gradients go where param_offload sends the parameters"),
            "use_mbridge": ((True, False), _HF_WEIGHTS),
            "vanilla_mbridge": ((True, False), _HF_WEIGHTS),
            "use_dist_checkpointing": ((False,), _HF_WEIGHTS),
            "dist_checkpointing_path": ((None,), _HF_WEIGHTS),
            "dist_checkpointing_prefix": ((), _HF_WEIGHTS),
            "load_weight": ((True,), _HF_WEIGHTS),
            "dist_ckpt_optim_fully_reshardable": ((True, False), "checkpoints always resume at any number of ranks"),
            "use_remove_padding": ((True,), _PACKED),
            "use_megatron_fsdp": ((False,), f"set {role}.strategy"),
            "dynamic_context_parallel": ((False,), "not built"),
            "forward_only": ((), "roles that train do both"),
            "seed": ((), _SEEDED),
            "dtype": (("bfloat16",), "forward and backward run in bfloat16"),
            "override_transformer_config.recompute_method": ((None, "uniform"), _RECOMPUTE),
            "override_transformer_config.recompute_num_layers": ((None, 1), _RECOMPUTE),
            "override_transformer_config.recompute_modules": ((None,), _RECOMPUTE),
            "override_transformer_config": ((), "Megatron-Lite takes the model's own configuration"),
            "override_mcore_model_config": ((), "Megatron-Lite takes the model's own configuration"),
            "override_ddp_config": ((), "left to Megatron-Lite"),
            "extra": ((), "left to Megatron-Lite"),
        }.items()
    },
    **{
        f"{role}.optim.{name}": rule
        for role in ("actor", "critic")
        for name, rule in {
            "lr_warmup_init": ((0, 0.0), "warm-up starts from 0"),
            "lr_decay_steps": ((None,), "the learning rate falls until the last step"),
            "min_lr": ((0, 0.0), f"set {role}.optim.min_lr_ratio, a share of lr"),
            "lr_wsd_decay_style": ((), "the schedules are constant, cosine and linear"),
            "lr_wsd_decay_steps": ((None,), "the schedules are constant, cosine and linear"),
            "weight_decay_incr_style": (("constant",), "weight decay stays as it is"),
            "use_checkpoint_opt_param_scheduler": ((True, False), "a resumed run goes on with its schedule"),
            "override_optimizer_config": ((None,), f"the optimizer's keys are those of {role}.optim"),
            "zero_indexed_step": ((True, False), "the first step has the first learning rate of the warm-up"),
            "num_cycles": ((0.5,), "cosine goes down once"),
            "optimizer_impl": (("torch.optim",), "optimizers are torch's"),
            "total_training_steps": ((-1, None), "set trainer.total_training_steps"),
        }.items()
    },
    "actor.optim.decoupled_lr": ((None,), "one learning rate for all parameters"),
    **{
        f"{role}.{name}": rule
        for role in ("actor", "critic")
        for name, rule in {
            "ppo_infer_micro_batch_size_per_gpu": ((None,), f"set {role}.ppo_micro_batch_size_per_gpu"),
            "ppo_infer_max_token_len_per_gpu": ((None,), f"set {role}.ppo_max_token_len_per_gpu"),
            "load_weight": ((True,), "weights are always read"),
            "use_rollout_log_probs": ((False,), "rollout.old_log_prob says where old log-probs come from"),
            "rollout_n": ((), "set rollout.n"),
            "nccl_timeout": ((), "set torch's own environment variables"),
        }.items()
    },
    "actor.policy_loss.rollout_correction": ((None,), "set algorithm.rollout_correction"),
    "critic.forward_micro_batch_size": ((None,), "values use critic.ppo_micro_batch_size_per_gpu"),
    "critic.use_dynamic_bsz": ((False,), _BUDGET.format("critic.ppo_max_token_len_per_gpu")),
    "critic.ppo_micro_batch_size": ((None,), "set critic.ppo_micro_batch_size_per_gpu"),
    "critic.forward_micro_batch_size_per_gpu": ((None,), "values use critic.ppo_micro_batch_size_per_gpu"),
    "critic.forward_max_token_len_per_gpu": ((None,), "values use critic.ppo_max_token_len_per_gpu"),
    "critic.shuffle": ((False,), "actor.shuffle decides for both"),
    "critic.data_loader_seed": ((), _SEEDED),
    "critic.model.tokenizer_path": ((None,), _SAME_MODEL),
    "critic.model.trust_remote_code": ((), f"model.trust_remote_code: {_ONE_NAME}"),
    "critic.model.override_config": ((), f"model.override_config: {_ONE_NAME}"),
    "critic.model.external_lib": ((None,), _SAME_MODEL),
    "critic.model.use_remove_padding": ((True,), _PACKED),
    "critic.model.use_shm": ((False,), _SAME_MODEL),
    "critic.model.lora_rank": ((0,), "LoRA is the actor's; the critic is trained whole"),
    **{
        f"critic.model.{name}": rule
        for name, rule in {
            "lora_alpha": ((), "LoRA is the actor's; the critic is trained whole"),
            "target_modules": ((), "LoRA is the actor's; the critic is trained whole"),
            "enable_activation_offload": ((False,), "model.enable_activation_offload is the actor's"),
            "use_liger": ((False,), "model.use_liger is the actor's"),
            "hf_config_path": ((None,), _SAME_MODEL),
            "custom_chat_template": ((None,), _SAME_MODEL),
        }.items()
    },
    "ref.strategy": (("fsdp", "fsdp2"), f"{_AS_ACTOR}: actor.strategy says whether that is FSDP2 or Megatron-Lite"),
    "ref.log_prob_use_dynamic_bsz": ((False,), _BUDGET.format("ref.log_prob_max_token_len_per_gpu")),
    "ref.log_prob_micro_batch_size": ((None,), "set ref.log_prob_micro_batch_size_per_gpu"),
    "ref.fsdp_config": ((), f"{_AS_ACTOR}: set actor.fsdp_config"),
    "ref.megatron": ((), f"{_AS_ACTOR}: set actor.megatron"),
    "ref.megatron.param_offload": ((True, False), "the reference's weights wait in host memory"),
    "ref.fsdp_config.param_offload": ((True, False), "the reference's weights wait in host memory"),
    "ref.ulysses_sequence_parallel_size": ((1,), f"{_AS_ACTOR}: set actor.ulysses_sequence_parallel_size"),
    "ref.entropy_from_logits_with_chunking": ((True, False), "log-probs are always computed in chunks"),
    "ref.entropy_checkpointing": ((True, False), "the reference has no backward pass"),
    "ref.use_torch_compile": ((True, False), f"{_AS_ACTOR}: see actor.fsdp_config"),
    "rollout.mode": (("async", "sync"), "rlx has one way to call an engine"),
    "rollout.nnodes": ((0,), "give the engine its own machines with cluster.pools and rollout.pool"),
    "rollout.n_gpus_per_node": ((), "give the engine its own GPUs with cluster.pools and rollout.pool"),
    "rollout.do_sample": ((True,), "for greedy answers set rollout.val_kwargs; training always samples"),
    "rollout.data_parallel_size": ((1,), "replicas fill the pool by themselves"),
    "rollout.expert_parallel_size": ((1,), "not built"),
    "rollout.pipeline_model_parallel_size": ((1,), "not built"),
    "rollout.enable_chunked_prefill": ((True,), "left to the engine"),
    "rollout.enable_prefix_caching": ((True,), "left to the engine"),
    "rollout.free_cache_engine": ((True,), "an engine that shares a GPU always gives its cache back during updates"),
    "rollout.load_format": (
        ("dummy", "dummy_dtensor", "safetensors", "auto"),
        "engines always start from the trainer's weights",
    ),
    "rollout.layered_summon": ((True, False), "weights always travel a bucket at a time"),
    "rollout.logprobs_mode": (("processed_logprobs",), "log-probs are those of the distribution sampled from"),
    "rollout.calculate_log_probs": (
        (True,),
        "engines always return log-probs; rollout.old_log_prob says whether they are used",
    ),
    "rollout.scheduling_policy": (("fcfs",), "not built"),
    "rollout.multi_stage_wake_up": ((True, False), "left to the engine"),
    "rollout.quantization": ((None,), "not built"),
    "rollout.seed": ((), _SEEDED),
    "rollout.full_determinism": ((), "set trainer.deterministic"),
    "rollout.log_prob_use_dynamic_bsz": ((False,), _BUDGET.format("rollout.log_prob_max_token_len_per_gpu")),
    "rollout.log_prob_micro_batch_size": ((None,), "set rollout.log_prob_micro_batch_size_per_gpu"),
    "rollout.router_config_path": ((None,), "not built"),
    "rollout.enable_rollout_routing_replay": ((False,), "not built"),
    "rollout.moe_load_balance_metrics_interval": ((0,), "not built"),
    "rollout.skip_tokenizer_init": ((True, False), "engines work on token ids"),
    "rollout.disable_log_stats": ((True, False), "left to the engine"),
    "algorithm.rollout_correction.loss_type": (("ppo_clip",), "the loss is actor.policy_loss.loss_mode"),
    "algorithm.filter_groups.max_inflight_gen_batches": ((1,), "one batch more is generated at a time"),
    "distillation.enabled": ((False,), "algorithm.name=opd distils"),
    "distillation.nnodes": ((0,), "teachers run on the pool teacher.pool"),
    "distillation.n_gpus_per_node": ((8,), "teachers run on the pool teacher.pool"),
    "distillation.teacher_key": (("data_source",), "data.reward_fn_key is the column that chooses a row's teacher"),
    "distillation.policy_loss_mode": (("vanilla",), "the policy loss is actor.policy_loss.loss_mode"),
    "reward.overlong_buffer.log": ((True, False), "the penalty is always logged, as reward/overlong/mean"),
    "reward.reward_kwargs.max_resp_len": ((None,), "the length limit is data.max_response_length"),
    "reward.reward_manager.source": (("register",), "set reward.custom_reward_function.path"),
    "reward.reward_manager.name": (("naive", "dapo", "gdpo"), _MANAGER),
    "reward_model.reward_manager": (("naive", "dapo"), _MANAGER),
    **{
        f"{section}.{name}": rule
        for section in ("reward.reward_model", "reward_model")
        for name, rule in {
            "enable": ((False,), "it scores where reward.scorers names it: reward.scorers={reward_model: 1}"),
            "enable_resource_pool": ((False,), _SCORING_POOL),
            "nnodes": ((0,), _SCORING_POOL),
            "n_gpus_per_node": ((0, 8), _SCORING_POOL),
        }.items()
    },
    "reward_model.strategy": (("fsdp", "fsdp2"), "it runs as FSDP2, whatever the actor does"),
    "reward_model.micro_batch_size": ((None,), "set reward.reward_model.micro_batch_size_per_gpu"),
    "reward_model.use_dynamic_bsz": ((False,), _BUDGET.format("reward.reward_model.max_token_len_per_gpu")),
    "reward_model.ulysses_sequence_parallel_size": ((1,), "its conversations are not split over ranks"),
    "reward_model.model.input_tokenizer": ((None,), "conversations are always rendered by its own chat template"),
    "reward_model.model.external_lib": ((None,), "packages add themselves through the entry-point group rlx.plugins"),
    "reward_model.model.use_remove_padding": ((True,), _PACKED),
    "reward_model.model.use_shm": ((False,), "put it on /dev/shm yourself and name that path"),
    "reward_model.model.fsdp_config": ((), "it is cut over its whole pool"),
    "reward_model.use_reward_loop": ((True, False), "scores are always computed while others generate"),
    "reward_model.launch_reward_fn_async": ((True, False), "scores are always computed in a process pool"),
    "trainer.balance_batch": ((True,), "tokens are always balanced over the ranks"),
    "trainer.log_val_generations": ((0,), "trainer.log_rollouts answers a step go to rollouts/step_N.jsonl"),
    "trainer.rollout_data_dir": (
        (None,),
        "answers go to the run directory's rollouts/; trainer.log_rollouts says how many",
    ),
    "trainer.validation_data_dir": ((None,), "answers go to the run directory's rollouts/"),
    "trainer.val_only": ((False,), "use `rlx eval`"),
    "trainer.resume_mode": (("disable",), "use `rlx train --resume`"),
    "trainer.resume_from_path": ((None,), "use `rlx train --resume`"),
    "trainer.del_local_ckpt_after_load": ((False,), "trainer.max_ckpt_to_keep removes old checkpoints"),
    "trainer.max_critic_ckpt_to_keep": ((None,), "actor and critic are kept together: set trainer.max_ckpt_to_keep"),
    "trainer.checkpoint_callback_class": ((None,), "not built"),
    "trainer.use_v1": ((True, False), "rlx has one trainer"),
    "trainer.esi_redundant_time": ((0,), "not built; SIGTERM makes a checkpoint"),
    "trainer.ray_wait_register_center_timeout": ((), "rlx needs no register centre"),
    "trainer.use_legacy_worker_impl": (("auto", "enable", "disable"), "rlx has one worker"),
    "global_profiler.tool": ((None, "torch"), "traces are torch's, for Perfetto; nsys can wrap the whole command"),
    "global_profiler.save_path": ((), "traces go to the run directory's profile/"),
    "global_profiler.profile_continuous_steps": ((False,), "every step has a trace of its own"),
    "global_profiler.global_tool_config": ((None,), "trainer.profile_memory is the one choice"),
    **{
        f"{role}.profiler.{name}": rule
        for role in ("actor", "ref", "critic", "rollout")
        for name, rule in {
            "tool": ((None, "torch"), "traces are torch's, for Perfetto; nsys can wrap the whole command"),
            "enable": ((True, False), "trainer.profile_steps says of which steps a trace is taken, of all roles"),
            "all_ranks": ((False,), "name the ranks in trainer.profile_ranks"),
            "save_path": ((), "traces go to the run directory's profile/"),
        }.items()
    },
    **{
        f"{role}.profiler.ranks": (([],), "trainer.profile_ranks names them for all roles")
        for role in ("ref", "critic", "rollout")
    },
    "hybrid_engine": ((True,), "pools decide: rollout.pool beside actor.pool"),
    "nccl_timeout": ((), "set torch's own environment variables"),
}
