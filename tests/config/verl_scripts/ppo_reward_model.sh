# PPO with a critic and a reward model, sequences split over two GPUs.
export HF_HUB_OFFLINE=1
ENGINE=${1:-vllm}
case "$ENGINE" in
    vllm|sglang) ;;
    *) echo "unknown engine $ENGINE"; exit 1 ;;
esac
ACTOR="actor_rollout_ref.actor"

python -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae \
    algorithm.gamma=0.99 algorithm.lam=0.95 \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_ctrl.type=adaptive \
    algorithm.kl_ctrl.kl_coef=0.01 \
    data.train_files="[/data/full_hh_rlhf/train.parquet]" \
    data.val_files=null \
    data.train_batch_size=512 \
    data.max_prompt_length=128 data.max_response_length=128 \
    actor_rollout_ref.model.path=deepseek-ai/deepseek-llm-7b-chat \
    $ACTOR.ppo_mini_batch_size=128 \
    "$ACTOR.use_dynamic_bsz=True" \
    ${ACTOR}.ppo_max_token_len_per_gpu=16000 \
    ${ACTOR}.clip_ratio=0.1 \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \
    critic.model.path=deepseek-ai/deepseek-llm-7b-chat \
    critic.ppo_mini_batch_size='${actor_rollout_ref.actor.ppo_mini_batch_size}' \
    critic.ulysses_sequence_parallel_size=2 \
    critic.model.enable_gradient_checkpointing=False \
    critic.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.rollout.name=$ENGINE \
    reward_model.enable=True \
    reward_model.model.path=sfairXC/FsfairX-LLaMA3-RM-v0.1 \
    custom_reward_function.path=my_reward.py \
    custom_reward_function.name=compute_score \
    trainer.n_gpus_per_node=8 \
    trainer.default_local_dir=$HOME/ckpts \
    trainer.total_epochs=1 2>&1 | tee ppo.log
