"""veRL's keys: the quickstart verbatim, every group of keys mapped or refused by name."""

import pytest

from verl_core.config.catalogue import names
from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.keys import PREFIX, Target, translate
from verl_core.config.overrides import Override, parse
from verl_core.config.typed import MISSING, leaf_types, steps, type_at
from verl_core.config.verl_keys import FIXED, RENAMED, SUBTREES

QUICKSTART = [
    "data.train_files=~/data/gsm8k/train.parquet",
    "data.val_files=~/data/gsm8k/test.parquet",
    "data.train_batch_size=256",
    "data.max_prompt_length=512",
    "data.max_response_length=512",
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
    "critic.optim.lr=1e-5",
    "critic.model.path=Qwen/Qwen2.5-0.5B-Instruct",
    "critic.ppo_micro_batch_size_per_gpu=4",
    "algorithm.kl_ctrl.kl_coef=0.001",
    "trainer.logger=console",
    "trainer.val_before_train=False",
    "trainer.n_gpus_per_node=1",
    "trainer.nnodes=1",
    "trainer.save_freq=10",
    "trainer.test_freq=10",
    "trainer.total_epochs=15",
]

# Leaves of the groups in veRL 0.9.1's composed PPO configuration, the prefix actor_rollout_ref. where it has one.
VERL = """
data: tokenizer train_files val_files train_max_samples val_max_samples prompt_key reward_fn_key max_prompt_length
 max_response_length train_batch_size gen_batch_size val_batch_size shuffle seed validation_shuffle
 dataloader_num_workers filter_overlong_prompts filter_overlong_prompts_workers truncation image_key video_key audio_key
 image_patch_size return_raw_chat tool_config_path function_tool_path custom_cls.path custom_cls.name
 apply_chat_template_kwargs mm_processor_kwargs return_multi_modal_inputs use_shm trust_remote_code
actor_rollout_ref.model: path hf_config_path tokenizer_path use_shm trust_remote_code custom_chat_template external_lib
 override_config enable_gradient_checkpointing enable_activation_offload use_remove_padding lora_rank lora_alpha
 target_modules exclude_modules lora_adapter_path use_liger use_fused_kernels fused_kernel_options.impl_backend
 tiled_mlp.enabled tiled_mlp.num_shards mtp.enable mtp.enable_train mtp.enable_rollout mtp.detach_encoder
 mtp.mtp_loss_scaling_factor mtp.speculative_algorithm mtp.speculative_num_steps mtp.speculative_eagle_topk
 mtp.speculative_num_draft_tokens mtp.method mtp.num_speculative_tokens lora.type lora.merge lora.rank lora.alpha
 lora.dropout lora.target_modules lora.exclude_modules
actor_rollout_ref.actor: strategy ppo_mini_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz
 ppo_max_token_len_per_gpu ppo_epochs shuffle data_loader_seed clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c
 tau_pos tau_neg policy_loss.loss_mode policy_loss.clip_cov_ratio policy_loss.clip_cov_lb policy_loss.clip_cov_ub
 policy_loss.kl_cov_ratio policy_loss.ppo_kl_coef policy_loss.dro_beta loss_agg_mode loss_scale_factor entropy_coeff
 calculate_entropy calculate_sum_pi_squared use_kl_loss kl_loss_coef kl_loss_type use_prefix_grouper use_torch_compile
 freeze_vision_tower grad_clip ulysses_sequence_parallel_size entropy_from_logits_with_chunking entropy_checkpointing
 pad_to_length checkpoint.save_contents checkpoint.load_contents checkpoint.async_save checkpoint.strict
 checkpoint.save_lora_only optim.optimizer optim.optimizer_impl optim.lr optim.betas optim.weight_decay optim.clip_grad
 optim.lr_scheduler_type optim.lr_warmup_steps optim.lr_warmup_steps_ratio optim.total_training_steps optim.num_cycles
 optim.min_lr_ratio optim.lr_warmup_init optim.lr_decay_steps optim.lr_decay_style optim.min_lr
 optim.weight_decay_incr_style optim.lr_wsd_decay_style optim.lr_wsd_decay_steps
 optim.use_checkpoint_opt_param_scheduler optim.override_optimizer_config fsdp_config.param_offload
 fsdp_config.optimizer_offload fsdp_config.offload_policy fsdp_config.reshard_after_forward fsdp_config.fsdp_size
 fsdp_config.forward_prefetch fsdp_config.model_dtype fsdp_config.dtype fsdp_config.seed fsdp_config.full_determinism
 fsdp_config.qat.enable fsdp_config.turbo_config.enable profiler.enable megatron.tensor_model_parallel_size
 megatron.pipeline_model_parallel_size megatron.virtual_pipeline_model_parallel_size megatron.context_parallel_size
 megatron.expert_model_parallel_size megatron.expert_tensor_parallel_size megatron.sequence_parallel
 megatron.use_distributed_optimizer megatron.param_offload megatron.grad_offload megatron.optimizer_offload
 megatron.use_mbridge megatron.vanilla_mbridge megatron.use_dist_checkpointing megatron.dist_checkpointing_path
 megatron.seed megatron.override_transformer_config.recompute_granularity
 megatron.override_transformer_config.recompute_method megatron.override_transformer_config.attention_backend
 megatron.override_ddp_config megatron.override_mcore_model_config
actor_rollout_ref.ref: strategy log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz
 log_prob_max_token_len_per_gpu fsdp_config.param_offload fsdp_config.forward_only fsdp_config.fsdp_size
 ulysses_sequence_parallel_size megatron.tensor_model_parallel_size megatron.param_offload use_torch_compile
actor_rollout_ref.rollout: name mode nnodes n_gpus_per_node temperature top_k top_p do_sample n prompt_length
 response_length dtype gpu_memory_utilization tensor_model_parallel_size data_parallel_size expert_parallel_size
 pipeline_model_parallel_size max_num_batched_tokens max_model_len max_num_seqs enable_chunked_prefill
 enable_prefix_caching enforce_eager free_cache_engine load_format layered_summon logprobs_mode calculate_log_probs
 scheduling_policy multi_stage_wake_up quantization seed full_determinism val_kwargs.temperature val_kwargs.top_p
 val_kwargs.top_k val_kwargs.n val_kwargs.do_sample multi_turn.enable multi_turn.max_assistant_turns
 multi_turn.max_user_turns multi_turn.max_parallel_calls multi_turn.max_tool_response_length
 multi_turn.tool_response_truncate_side multi_turn.tokenization_sanity_check_mode multi_turn.format
 multi_turn.tool_config_path multi_turn.function_tool_path agent.num_workers agent.default_agent_loop
 agent.agent_loop_config_path checkpoint_engine.backend checkpoint_engine.update_weights_bucket_megabytes
 checkpoint_engine.engine_kwargs checkpoint_engine.custom_backend_module disaggregation.enabled
 disaggregation.prefill_replicas disaggregation.decode_replicas disaggregation.transfer_backend trace.backend
 prometheus.enable router_config_path enable_rollout_routing_replay moe_load_balance_metrics_interval engine_kwargs.vllm
 engine_kwargs.sglang engine_kwargs.trtllm log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz
 log_prob_max_token_len_per_gpu skip_tokenizer_init
critic: enable strategy optim.lr optim.weight_decay optim.lr_warmup_steps ppo_mini_batch_size
 ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu ppo_epochs shuffle data_loader_seed
 cliprange_value loss_agg_mode grad_clip ulysses_sequence_parallel_size model.path model.tokenizer_path
 model.trust_remote_code model.external_lib model.override_config model.enable_gradient_checkpointing
 model.enable_activation_offload model.use_remove_padding model.use_shm model.lora_rank model.lora_alpha
 model.target_modules model.tiled_mlp.enabled fsdp_config.param_offload fsdp_config.fsdp_size fsdp.fsdp_size
 megatron.tensor_model_parallel_size megatron.grad_offload checkpoint.save_contents profiler.enable
algorithm: gamma lam adv_estimator norm_adv_by_std_in_grpo use_kl_in_reward kl_penalty kl_ctrl.type kl_ctrl.kl_coef
 kl_ctrl.horizon kl_ctrl.target_kl use_pf_ppo pf_ppo.reweight_method pf_ppo.weight_pow filter_groups.enable
 filter_groups.metric filter_groups.max_num_gen_batches filter_groups.max_inflight_gen_batches
 rollout_correction.rollout_is rollout_correction.rollout_is_threshold rollout_correction.rollout_rs
 rollout_correction.rollout_rs_threshold rollout_correction.bypass_mode rollout_correction.loss_type
 rollout_correction.rollout_is_batch_normalize gdpo_reward_keys gdpo_reward_weights
reward: num_workers custom_reward_function.path custom_reward_function.name reward_manager.source reward_manager.name
 reward_manager.module reward_model.enable reward_model.enable_resource_pool reward_model.n_gpus_per_node
 reward_model.nnodes reward_model.model_path reward_model.rollout.temperature sandbox_fusion.url
 sandbox_fusion.max_concurrent sandbox_fusion.memory_limit_mb reward_kwargs reward_kwargs.overlong_buffer_cfg.enable
 reward_kwargs.overlong_buffer_cfg.len reward_kwargs.overlong_buffer_cfg.penalty_factor
 reward_kwargs.overlong_buffer_cfg.log reward_kwargs.max_resp_len
distillation: enabled nnodes n_gpus_per_node teacher_key teacher_models.one.model_path distillation_loss.loss_mode
 distillation_loss.topk distillation_loss.use_task_rewards
transfer_queue: enable backend.storage_backend backend.SimpleStorage.total_storage_size metrics.enabled
trainer: balance_batch total_epochs total_training_steps project_name experiment_name logger log_val_generations
 rollout_data_dir validation_data_dir nnodes n_gpus_per_node save_freq test_freq val_before_train val_only critic_warmup
 resume_mode default_local_dir default_hdfs_dir max_actor_ckpt_to_keep max_critic_ckpt_to_keep checkpoint_callback_class
 device use_v1 v1.trainer_mode v1.colocate_async.num_warmup_batches v1.separate_async.num_warmup_batches
 v1.separate_async.parameter_sync_step v1.separate_async.hybrid_rollout.enable_switch
 v1.sampler.max_off_policy_threshold v1.sampler.max_off_policy_strategy v1.sampler.sync_refill_failed_groups
 v1.sampler.custom_sampler v1.sampler.sampler_kwargs
global_profiler: tool steps global_tool_config.nsys
skip: rollout rollout_tq async_rollout
ray_kwargs: ray_init timeline_json_file
custom_reward_function: path name
reward_model: enable reward_manager num_workers model.path overlong_buffer.enable reward_kwargs.overlong_buffer_cfg.len
sandbox_fusion: url
"""


def verl_keys() -> list[str]:
    found = []
    for line in VERL.strip().replace("\n ", " ").splitlines():
        head, _, tails = line.partition(":")
        found += [f"{head}.{tail}" for tail in tails.split()]
    return found


def test_the_quickstart_runs_verbatim_and_warns_as_it_should():
    resolved = resolve("gsm8k-ppo", QUICKSTART)
    c = resolved.config
    assert (c.rollout.engine, c.actor.optim.lr, c.critic.optim.lr, c.data.train_batch_size) == ("vllm", 1e-6, 1e-5, 256)
    assert (c.cluster.nnodes, c.cluster.n_gpus_per_node, c.trainer.logger) == (1, 1, ["console"])
    assert effective(c).critic.enable is True
    assert resolved.warnings == [
        "algorithm.kl_ctrl.kl_coef (command line) has no effect; for that set algorithm.use_kl_in_reward=true",
        "ref.log_prob_micro_batch_size_per_gpu (command line) has no effect; "
        "for that set actor.use_kl_loss=true or algorithm.use_kl_in_reward=true",
    ]
    verl = [word for word in QUICKSTART if word.startswith((PREFIX, "trainer.nnodes", "trainer.n_gpus"))]
    assert len(resolved.notes) == len(verl)
    assert "actor_rollout_ref.rollout.name is rollout.engine here" in resolved.notes


def test_the_log_prob_micro_batches_have_no_effect_with_the_engine_that_gives_log_probs():
    resolved = resolve("gsm8k-ppo", [*QUICKSTART, "actor_rollout_ref.rollout.name=hf", "trainer.device=cpu"])
    assert any(
        "rollout.log_prob_micro_batch_size_per_gpu" in line and "rollout.old_log_prob=recompute" in line
        for line in resolved.warnings
    )


@pytest.mark.parametrize("key", verl_keys())
def test_every_verl_key_is_mapped_or_refused_by_name(key):
    target = translate(key, "some value")
    if isinstance(target, Target):
        assert target.path is not None and type_at(steps(target.path)) is not MISSING, f"{key} would be an unknown key"
    else:
        assert target.path == key and target.text.startswith("veRL's key has no counterpart here: ")


def test_the_tables_point_at_keys_that_exist():
    for old, new in RENAMED.items():
        assert type_at(steps(new)) is not MISSING, new
        assert old not in leaf_types(), f"{old} is a key of its own"
    for key in FIXED:
        assert key not in leaf_types(), f"{key} exists: the rule would hide it"
    for block in SUBTREES:
        assert type_at(steps(block)) is MISSING, f"{block} exists: a slip inside it would be called veRL's"


@pytest.mark.parametrize(
    ("word", "note"),
    [
        ("actor_rollout_ref.model.use_remove_padding=True", "always packs"),
        ("model.use_remove_padding=true", "always packs"),
        ("actor_rollout_ref.actor.use_dynamic_bsz=False", "actor.ppo_max_token_len_per_gpu"),
        ("actor_rollout_ref.actor.strategy=fsdp2", "actor.strategy=fsdp here"),
        ("actor_rollout_ref.rollout.multi_turn.enable=False", "not built"),
        ("+actor_rollout_ref.rollout.trace.backend=null", "rollouts/"),
        ("trainer.use_v1=True", "one trainer"),
        ("reward.reward_kwargs.overlong_buffer_cfg.enable=False", "reward.overlong_buffer.enable here"),
        ("actor_rollout_ref.rollout.mode=async", "engine"),
    ],
)
def test_what_rlx_does_anyway_is_a_note(word, note):
    resolved = resolve("smoke", [word], strict=True)
    assert note in resolved.notes[0]
    assert resolved.config == resolve("smoke").config


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("actor_rollout_ref.model.lora_rank=8", "model.lora_rank", 8),
        ("actor_rollout_ref.model.lora.rank=8", "model.lora_rank", 8),
        ("actor_rollout_ref.model.lora.alpha=8", "model.lora_alpha", 8),
        ("model_engine=megatron", "actor.strategy", "megatron"),
        ("actor_rollout_ref.actor.strategy=fsdp2", "actor.strategy", "fsdp"),
        ("actor_rollout_ref.actor.optim.optimizer=AdamW", "actor.optim.optimizer", "adamw"),
        ("critic.optim.lr_decay_style=linear", "critic.optim.lr_scheduler_type", "linear"),
        ("actor_rollout_ref.actor.fsdp_config.model_dtype=bf16", "actor.fsdp_config.model_dtype", "bfloat16"),
        (
            "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full",
            "actor.megatron.recompute_granularity",
            "full",
        ),
        ("reward.reward_kwargs.overlong_buffer_cfg.len=12", "reward.overlong_buffer.len", 12),
        ("+reward_model.reward_kwargs.overlong_buffer_cfg.len=12", "reward.overlong_buffer.len", 12),
        ("reward_model.overlong_buffer.penalty_factor=0.5", "reward.overlong_buffer.penalty_factor", 0.5),
        ("+reward_model.reward_kwargs.method=boxed", "reward.reward_kwargs.method", "boxed"),
        ("algorithm.adv_estimator=grpo_vectorized", "algorithm.adv_estimator", "grpo"),
        ("actor_rollout_ref.actor.checkpoint.async_save=True", "trainer.async_save", True),
        ("critic.checkpoint.async_save=False", "trainer.async_save", False),
        ("algorithm.filter_groups.metric=seq_reward", "algorithm.filter_groups.metric", "reward"),
    ],
)
def test_keys_and_values_with_another_name_here(word, key, value):
    read = parse(word)
    assert isinstance(read, Override), read
    assert (read.path, read.value) == (key, value)
    assert read.note


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("actor_rollout_ref.actor.use_dynamic_bsz=True", "set.* actor.ppo_max_token_len_per_gpu|actor.ppo_max_token"),
        ("model.use_remove_padding=False", "always packs"),
        ("ref.strategy=megatron", "FSDP2"),
        ("trainer.resume_mode=auto", "--resume"),
        ("critic.model.lora_rank=8", "LoRA"),
        ("actor_rollout_ref.rollout.temprature=1", r"rollout.temprature=.*did you mean rollout.temperature"),
        ("actor_rollout_ref.actor.fsdp_config.dtyp=bfloat16", "did you mean actor.fsdp_config.dtype"),
        ("transfer_queue.enable=True", "transfer queue"),
        ("actor_rollout_ref.rollout.name=trtllm", "rollout.engine='trtllm'.*one of hf, vllm, sglang"),
    ],
)
def test_verl_keys_without_counterpart_are_refused_with_the_way_out(word, message):
    with pytest.raises(UserError, match=message):
        resolve("smoke", [word])


def test_plus_is_read_away_on_verl_paths_only():
    config = resolve("smoke", ["+data.apply_chat_template_kwargs.enable_thinking=false", "+trainer.seed=3"]).config
    assert config.data.apply_chat_template_kwargs == {"enable_thinking": False}
    assert config.trainer.seed == 3
    for word in ("+rollout.n=2", "+cluster.nproc=2", "+nonsense=1"):
        with pytest.raises(UserError, match=r"need no \+"):
            resolve("smoke", [word])


def test_verl_keys_in_a_file(tmp_path):
    file = tmp_path / "verl.yaml"
    file.write_text(
        "extends: smoke\nactor_rollout_ref: {rollout: {name: hf, n: 4}, actor: {optim: {lr: 1e-4}}}\n"
        "trainer: {n_gpus_per_node: 2, logger: [console]}\nmodel: {use_remove_padding: true}\n"
    )
    resolved = resolve(None, file=file)
    c = resolved.config
    assert (c.rollout.engine, c.rollout.n, c.actor.optim.lr, c.cluster.n_gpus_per_node) == ("hf", 4, 1e-4, 2)
    assert resolved.origins["rollout.n"] == str(file)
    assert len(resolved.notes) == 5
    file.write_text("extends: smoke\nactor_rollout_ref: {rollout: {n: 4}}\nrollout: {n: 8}\n")
    with pytest.raises(UserError, match="given twice"):
        resolve(None, file=file)
    file.write_text("extends: smoke\nactor_rollout_ref: {actor: {use_dynamic_bsz: true}}\n")
    with pytest.raises(UserError, match=r"actor_rollout_ref.actor.use_dynamic_bsz=true"):
        resolve(None, file=file)


def test_an_estimator_alone_chooses_parts_as_verl_does():
    words = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=5"]
    e = effective(resolve("gsm8k-ppo", words).config)
    assert (e.algorithm.adv_estimator, e.critic.enable) == ("grpo", False)
    assert (e.actor.loss_agg_mode, e.actor.use_kl_loss, e.algorithm.norm_adv_by_std_in_grpo) == (
        "token-mean",
        False,
        True,
    )
    assert set(names("advantage")) >= {"gae", "grpo", "rloo", "reinforce_plus_plus"}


def test_profiling_keys_name_steps_and_ranks():
    words = ["global_profiler.steps=[3,5]", "actor_rollout_ref.actor.profiler.ranks=[0]", "global_profiler.tool=torch"]
    config = resolve("smoke", [*words, "actor_rollout_ref.actor.profiler.enable=True"]).config
    assert (config.trainer.profile_steps, config.trainer.profile_ranks) == ([3, 5], [0])
    assert resolve("smoke", ["global_profiler.steps=null"]).config.trainer.profile_steps is None
    with pytest.raises(UserError, match="nsys can wrap the whole command"):
        resolve("smoke", ["global_profiler.tool=nsys"])
