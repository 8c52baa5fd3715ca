"""The smoke profile's GRPO step by TRL's GRPOTrainer, run in TRL's own environment by bench_trl.py:

    python trl_side.py MODEL_DIR STEPS

Prints one JSON line {step_s: [...], reward: [...]}, one entry a step. Its settings are those of profiles/smoke.yaml:
16 prompts x 8 answers of at most 24 tokens, temperature 1, one optimizer step a batch, AdamW, no KL.
"""

import json
import sys
import tempfile
import time

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from verl_core.data.show_your_work import rows
from verl_core.rewards.show_your_work import compute_score

PROMPTS, GROUP, NEW_TOKENS, LEARNING_RATE = 16, 8, 24, 1e-4


def reward(completions, ground_truth, **_):
    pairs = zip(completions, ground_truth, strict=True)
    return [compute_score("", answer[0]["content"], gold)["score"] for answer, gold in pairs]


class Clock(TrainerCallback):
    """Seconds from the beginning to the end of each step (generation is part of it), and the logged rewards."""

    def __init__(self):
        self.began, self.seconds, self.rewards = 0.0, [], []

    def on_step_begin(self, args, state, control, **_):
        self.began = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        self.seconds.append(time.perf_counter() - self.began)

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "reward" in logs:
            self.rewards.append(logs["reward"])


def main(model: str, steps: int) -> None:
    torch.set_num_threads(1)
    data = [{"prompt": r["prompt"], "ground_truth": r["reward_model"]["ground_truth"]} for r in rows("train", seed=0)]
    clock = Clock()
    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output_dir=output,
            per_device_train_batch_size=PROMPTS * GROUP,
            gradient_accumulation_steps=1,
            num_generations=GROUP,
            max_completion_length=NEW_TOKENS,
            max_steps=steps,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=5,
            adam_beta2=0.95,
            weight_decay=0.0,
            max_grad_norm=1.0,
            beta=0.0,
            temperature=1.0,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        )
        trainer = GRPOTrainer(
            model=model, reward_funcs=reward, args=config, train_dataset=Dataset.from_list(data), callbacks=[clock]
        )
        trainer.train()
    print(json.dumps({"step_s": clock.seconds, "reward": clock.rewards}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
