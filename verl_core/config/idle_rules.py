"""When keys change nothing under the chosen options, and the switch that would give them effect."""

from verl_core.config.effective import (
    advantage_needs,
    answers_a_row,
    kl_terms,
    strategies,
    uses_reference,
    uses_rollout,
)
from verl_core.config.idle_reward_rules import REWARD_RULES
from verl_core.config.idle_rule_kinds import (
    Condition,
    Rule,
    back_end_rules,
    catalogue_rules,
    keys_of,
    optimizer_rules,
    shard_rule,
)
from verl_core.config.loss_terms import FULL_KL
from verl_core.config.model_roles import estimates_advantages, teachers, trains_process_rewards
from verl_core.config.preferences import prefers
from verl_core.config.schema import RlxConfig, ValKwargs
from verl_core.config.schema_distillation import FORWARD_TOPK

_CORRECTION = "algorithm.rollout_correction"
_OF_POLICY_LOSS = (
    *("actor.clip_ratio", "actor.clip_ratio_low", "actor.clip_ratio_high", "actor.clip_ratio_c"),
    *("actor.tau_pos", "actor.tau_neg", "actor.policy_loss.", "actor.loss_agg_mode", "actor.loss_scale_factor"),
    "actor.positive_lm_coef",
    *("actor.entropy_coeff", "actor.entropy_ctrl.", "actor.use_kl_loss", "actor.kl_loss_coef", "actor.kl_loss_type"),
    *("algorithm.use_kl_in_reward", "algorithm.use_pf_ppo", f"{_CORRECTION}."),
)


def _no_critic(estimates: bool) -> Condition:
    """Whether no critic is trained, by an algorithm that has an advantage estimator, or by one that has none."""
    return lambda c: not c.critic.enable and estimates_advantages(c) == estimates


def _policy_loss(c: RlxConfig) -> bool:
    return uses_rollout(c) and not prefers(c)


def _engine_log_probs(c: RlxConfig) -> bool:
    """Whether old log-probs surely come from the rollout engine, so that no trainer pass is made for them. A dtype that
    is null is float32 on the CPU only, and trainer.device=auto does not say where that will be."""
    r = c.rollout
    unset = "float32" if c.trainer.device == "cpu" else None
    float32 = all((dtype or unset) == "float32" for dtype in (r.dtype, c.actor.fsdp_config.dtype))
    own = r.engine == "hf" and r.top_p == 1.0 and r.top_k == -1 and float32
    own = own and c.algorithm.rollout_correction.rollout_is is None
    return r.old_log_prob == "rollout" or (r.old_log_prob == "auto" and own)


def _val_default(name: str) -> Condition:
    return lambda c: (
        not c.rollout.val_kwargs.do_sample and getattr(c.rollout.val_kwargs, name) != getattr(ValKwargs(), name)
    )


RULES = [
    Rule(
        (
            "rollout.",
            "weights.",
            "reward.",
            "algorithm.adv_estimator",
            "algorithm.filter_groups.",
            "trainer.parity",
            "trainer.parity_threshold",
            "trainer.log_rollouts",
        ),
        lambda c: not uses_rollout(c),
        "algorithm.name=grpo or another that generates",
    ),
    *back_end_rules("actor"),
    *back_end_rules("critic"),
    Rule(("actor.share_prompt",), lambda c: "fsdp" not in strategies(c), "actor.strategy=fsdp"),
    Rule(
        ("actor.share_prompt",),
        lambda c: not uses_rollout(c) and answers_a_row(c) == 1,
        "algorithm.name=grpo or dpo, or another with several answers to a prompt",
    ),
    Rule(
        ("actor.share_prompt",),
        lambda c: uses_rollout(c) and c.rollout.n == 1,
        "rollout.n=8 or another group of answers",
    ),
    Rule(
        ("model.lora_alpha", "model.target_modules", "model.exclude_modules"),
        lambda c: not c.model.lora_rank,
        "model.lora_rank=16 or another rank",
    ),
    Rule(
        ("rollout.restarts", "rollout.stall_s"),
        lambda c: c.weights.type == "inplace",
        "rollout.engine=vllm or another engine in a process of its own",
        also=("rollout.pool", "weights.type"),
    ),
    Rule(
        ("rollout.lora_native",),
        lambda c: c.rollout.lora_native and (not c.model.lora_rank or c.rollout.engine != "vllm"),
        "rollout.engine=vllm and model.lora_rank=16 or another rank",
    ),
    Rule(("weights.bucket_mb",), lambda c: c.weights.type == "inplace", "weights.type=ipc or another that sends"),
    Rule(
        ("model.recompute_granularity",),
        lambda c: not c.model.enable_gradient_checkpointing,
        "model.enable_gradient_checkpointing=true",
    ),
    Rule(
        ("algorithm.filter_groups.metric", "algorithm.filter_groups.max_num_gen_batches"),
        lambda c: not c.algorithm.filter_groups.enable,
        "algorithm.filter_groups.enable=true",
    ),
    *(
        Rule(
            ("critic.", "trainer.critic_warmup"),
            _no_critic(estimates),
            switch,
            besides=("critic.enable",),
            also=("critic.enable",),
        )
        for estimates, switch in ((True, "algorithm.adv_estimator=gae"), (False, "algorithm.name=ppo"))
    ),
    Rule(  # it would be trained and nobody would read its values
        ("critic.enable",),
        lambda c: bool(c.critic.enable) and estimates_advantages(c) and "critic" not in advantage_needs(c),
        "algorithm.adv_estimator=gae",
    ),
    Rule(
        ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_ctrl.type", "algorithm.kl_penalty"),
        lambda c: not c.algorithm.use_kl_in_reward,
        "algorithm.use_kl_in_reward=true",
    ),
    Rule(
        ("algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl"),
        lambda c: not c.algorithm.use_kl_in_reward or c.algorithm.kl_ctrl.type == "fixed",
        "algorithm.use_kl_in_reward=true and algorithm.kl_ctrl.type=adaptive",
    ),
    Rule(
        ("actor.kl_loss_coef", "actor.kl_loss_type"),
        lambda c: _policy_loss(c) and not c.actor.use_kl_loss,
        "actor.use_kl_loss=true",
    ),
    Rule(
        ("ref.",),
        lambda c: not uses_reference(c),
        "actor.use_kl_loss=true or algorithm.use_kl_in_reward=true",
    ),
    Rule(  # the reference goes through its layers as the actor does
        ("ref.log_prob_micro_batch_size_per_gpu", "ref.log_prob_max_token_len_per_gpu"),
        lambda c: set(kl_terms(c).values()) == {FULL_KL},
        "actor.kl_loss_type or algorithm.kl_penalty to another than full",
    ),
    *catalogue_rules(
        "advantage",
        "algorithm.adv_estimator",
        (
            "algorithm.gamma",
            "algorithm.lam",
            "algorithm.lam_critic",
            "algorithm.lam_alpha",
            "algorithm.norm_adv_by_std_in_grpo",
            "algorithm.gdpo_reward_keys",
            "algorithm.gdpo_reward_weights",
        ),
    ),
    Rule(
        ("algorithm.lam",),
        lambda c: c.algorithm.adv_estimator == "decoupled_gae" and c.algorithm.lam_alpha is not None,
        "algorithm.lam_alpha=null, with an algorithm.name other than vapo",
    ),
    Rule(
        ("algorithm.use_kl_in_reward",),  # each of its rewards is read by its own name
        lambda c: c.algorithm.adv_estimator == "gdpo" and bool(c.algorithm.use_kl_in_reward),
        "algorithm.adv_estimator=grpo or another that adds rewards up",
    ),
    Rule(
        ("algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo"),
        lambda c: uses_rollout(c) and not estimates_advantages(c),
        "algorithm.name=grpo or another that has an estimator, or distillation.use_task_rewards=true with opd",
    ),
    Rule(("distillation.", "teacher."), lambda c: not teachers(c), "algorithm.name=opd"),
    Rule(
        ("distillation.topk",),
        lambda c: c.distillation.loss_mode != FORWARD_TOPK,
        f"distillation.loss_mode={FORWARD_TOPK}",
    ),
    Rule(
        ("distillation.log_prob_min_clamp",),
        lambda c: c.distillation.loss_mode == FORWARD_TOPK,
        "distillation.loss_mode=k1 or another estimator",
    ),
    Rule(
        ("algorithm.use_kl_in_reward",),
        lambda c: bool(c.algorithm.use_kl_in_reward and teachers(c)) and not estimates_advantages(c),
        "distillation.use_task_rewards=true",
    ),
    Rule(("algorithm.prime.",), lambda c: not trains_process_rewards(c), "algorithm.name=prime"),
    Rule(("algorithm.pf_ppo.",), lambda c: not c.algorithm.use_pf_ppo, "algorithm.use_pf_ppo=true"),
    Rule(
        ("actor.entropy_ctrl.target", "actor.entropy_ctrl.delta"),
        lambda c: _policy_loss(c) and c.actor.entropy_ctrl.type == "fixed",
        "actor.entropy_ctrl.type=target",
    ),
    *catalogue_rules(
        "policy_loss",
        "actor.policy_loss.loss_mode",
        keys_of("policy_loss"),
        where=_policy_loss,
    ),
    Rule(("algorithm.preference.",), lambda c: not prefers(c), "algorithm.name=dpo or another that prefers"),
    *catalogue_rules("preference_loss", "algorithm.preference.loss", keys_of("preference_loss"), where=prefers),
    Rule(
        ("algorithm.preference.ref_update_freq",),
        lambda c: prefers(c) and not uses_reference(c),
        "algorithm.name=online_dpo or another with a reference",
        also=("algorithm.preference.loss",),
    ),
    Rule(
        _OF_POLICY_LOSS,
        lambda c: not _policy_loss(c),
        "algorithm.name=grpo or another that has a policy loss",
    ),
    *catalogue_rules("algorithm", "algorithm.name", ("data.messages_key", "data.response_key")),
    Rule(
        ("rollout.old_log_prob",),
        lambda c: prefers(c) and c.algorithm.name != "sppo",
        "algorithm.name=sppo or grpo, or another that looks back at the policy that sampled",
    ),
    *catalogue_rules("transport", "weights.type", ("weights.folder",)),
    *optimizer_rules("actor.optim"),
    *optimizer_rules("critic.optim"),
    *optimizer_rules("algorithm.prime.optim"),
    Rule(
        ("actor.loss_scale_factor",),
        lambda c: _policy_loss(c) and c.actor.loss_agg_mode != "seq-mean-token-sum-norm",
        "actor.loss_agg_mode=seq-mean-token-sum-norm",
    ),
    Rule(
        ("rollout.gpu_memory_utilization", "rollout.enforce_eager", "rollout.max_num_batched_tokens"),
        lambda c: c.rollout.engine == "hf",
        "rollout.engine=vllm or sglang",
    ),
    Rule(
        ("rollout.tensor_model_parallel_size",),
        lambda c: c.rollout.engine == "hf" and c.rollout.tensor_model_parallel_size > 1,
        "rollout.engine=vllm or sglang",
    ),
    Rule(
        ("rollout.log_prob_micro_batch_size_per_gpu", "rollout.log_prob_max_token_len_per_gpu"),
        _engine_log_probs,
        "rollout.old_log_prob=recompute",
        also=("rollout.engine",),
    ),
    Rule(
        tuple(f"{_CORRECTION}.{name}" for name in ("rollout_is_threshold", "rollout_is_batch_normalize")),
        lambda c: c.algorithm.rollout_correction.rollout_is is None,
        f"{_CORRECTION}.rollout_is=token or sequence",
    ),
    Rule(  # the loss's own ratio is then the importance ratio
        (f"{_CORRECTION}.rollout_is",),
        lambda c: c.rollout.old_log_prob == "rollout",
        "rollout.old_log_prob=auto or recompute",
    ),
    Rule(
        (f"{_CORRECTION}.rollout_rs_threshold",),
        lambda c: c.algorithm.rollout_correction.rollout_rs is None,
        f"{_CORRECTION}.rollout_rs=token_k1 or another rule",
    ),
    *(
        Rule((f"rollout.val_kwargs.{name}",), _val_default(name), "rollout.val_kwargs.do_sample=true")
        for name in ("temperature", "top_p", "top_k", "n")
    ),
    Rule(
        ("rollout.val_kwargs.", "trainer.test_freq", "trainer.val_before_train", "data.val_max_samples"),
        lambda c: not c.data.val_files,
        "data.val_files",
    ),
    Rule(("data.truncation",), lambda c: c.data.filter_overlong_prompts, "data.filter_overlong_prompts=false"),
    Rule(("data.train_files", "data.train_max_samples"), lambda c: bool(c.data.mixture), "data.mixture={}"),
    Rule(
        ("data.curriculum.by", "data.curriculum.drop_solved", "data.shuffle"),
        lambda c: c.data.curriculum.path is not None,
        "data.curriculum.path=null",
    ),
    Rule(("data.curriculum.name",), lambda c: c.data.curriculum.path is None, "data.curriculum.path"),
    Rule(
        ("data.curriculum.drop_solved",),
        lambda c: not uses_rollout(c),
        "algorithm.name=grpo or another one that generates answers",
    ),
    Rule(("data.seed",), lambda c: not c.data.shuffle and c.data.curriculum.path is None, "data.shuffle=true"),
    *REWARD_RULES,
    Rule(("warmup.",), lambda c: not c.model.path.startswith("builtin:"), "model.path=builtin:NAME"),
    Rule(
        ("trainer.total_epochs",),
        lambda c: c.trainer.total_training_steps is not None,
        "trainer.total_training_steps=null",
    ),
    Rule(
        ("trainer.profile_ranks", "trainer.profile_memory"),
        lambda c: not c.trainer.profile_steps,
        "trainer.profile_steps=[3] or other steps",
    ),
    Rule(("trainer.parity_threshold",), lambda c: c.trainer.parity == "off", "trainer.parity=error or warn"),
    Rule(
        (
            *(f"{role}.fsdp_config.{what}_offload" for role in ("actor", "critic") for what in ("param", "optimizer")),
            "model.enable_activation_offload",
            "teacher.param_offload",
            "reward.reward_model.param_offload",
        ),
        lambda c: c.trainer.device == "cpu",
        "trainer.device=auto or cuda",
    ),
    *(shard_rule(role) for role in ("actor", "critic")),
    Rule(("trainer.async_save",), lambda c: c.trainer.save_freq <= 0, "trainer.save_freq=1 or more"),
    Rule(
        ("trainer.checkpoint_url", "trainer.max_ckpt_to_keep"),
        lambda c: c.trainer.save_freq == 0,
        "trainer.save_freq=-1 or more than 0",
    ),
    Rule(
        ("trainer.keep_best.metric",),
        lambda c: c.trainer.max_ckpt_to_keep is None or c.trainer.save_freq <= 0,
        "trainer.save_freq and trainer.max_ckpt_to_keep, 1 or more",
    ),
    Rule(
        ("trainer.keep_best.metric",),
        lambda c: (c.trainer.keep_best.metric or "").startswith("val") and c.trainer.test_freq == 0,
        "trainer.test_freq=-1 or more than 0",
    ),
    Rule(("trainer.keep_best.mode",), lambda c: c.trainer.keep_best.metric is None, "trainer.keep_best.metric"),
    Rule(("cluster.ray_address",), lambda c: c.cluster.executor == "local", "cluster.executor=ray"),
]
