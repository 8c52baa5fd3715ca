#!/bin/bash
set -x
lora_rank=32
nohup env PYTHONUNBUFFERED=1 HYDRA_FULL_ERROR=1 python3 -u -m verl.trainer.main_ppo \
 algorithm.adv_estimator=grpo \
 data.train_files=~/data/gsm8k/train.parquet \
 data.val_files=~/data/gsm8k/test.parquet \
 data.train_batch_size=16 \
 data.max_prompt_length=512 data.max_response_length=1024 \
 data.shuffle=False \
 actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct \
 actor_rollout_ref.model.use_shm=True \
 actor_rollout_ref.model.lora_rank=$lora_rank \
 actor_rollout_ref.model.lora_alpha=$(($lora_rank * 2)) \
 actor_rollout_ref.model.target_modules=all-linear \
 actor_rollout_ref.model.exclude_modules='[visual,lm_head]' \
 actor_rollout_ref.actor.strategy=fsdp2 \
 actor_rollout_ref.actor.optim.lr=3e-6 \
 actor_rollout_ref.actor.ppo_mini_batch_size=16 \
 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40 \
 actor_rollout_ref.actor.ppo_max_token_len_per_gpu=9999 \
 actor_rollout_ref.actor.use_kl_loss=True \
 actor_rollout_ref.actor.fsdp_config.model_dtype=bf16 \
 actor_rollout_ref.rollout.name=vllm \
 actor_rollout_ref.rollout.n=5 \
 actor_rollout_ref.rollout.load_format=safetensors \
 actor_rollout_ref.rollout.layered_summon=True \
 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=40 \
 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=40 \
 trainer.n_gpus_per_node=2 \
 trainer.logger=console \
 trainer.total_training_steps=100 > train.log 2>&1 &
