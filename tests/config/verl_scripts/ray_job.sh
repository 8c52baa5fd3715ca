# A job for a Ray cluster whose address comes from outside; the trainer runs in a shell of its own.
RAY_ADDRESS=${RAY_ADDRESS:-http://127.0.0.1:8265}
ray job submit --address="$RAY_ADDRESS" --runtime-env-json='{"working_dir": "."}' -- bash -c "python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=rloo algorithm.kl_ctrl.kl_coef=0.05 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.n=4 \
    trainer.nnodes=2"
