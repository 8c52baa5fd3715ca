"""Writes fixtures/deepspeed.tar.xz: a tiny Qwen2 after one step of a real DeepSpeed run on two CPU ranks.

Run once, by hand, in an environment that has deepspeed 0.19.2 beside torch and transformers:
`python make_deepspeed_checkpoints.py OUT`; then `tar -cJf fixtures/deepspeed.tar.xz -C OUT .`. Each folder
`zero<stage>_<tied|untied>` holds what DeepSpeed wrote, the model's config, and `truth.safetensors`: the weights as the
ranks held them, gathered by DeepSpeed itself. The final norm is not trained.
"""

import json
import os
import sys
from pathlib import Path

os.environ |= {"DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29617", "OMP_NUM_THREADS": "1"}

import deepspeed
import torch
import torch.multiprocessing as mp
from deepspeed.utils import safe_get_full_fp32_param
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Qwen2Config

RANKS = 2
CASES = [(3, True, "bf16"), (3, False, "fp32"), (2, True, "bf16")]  # ZeRO stage, tied head, training dtype


def tiny(tied: bool) -> Qwen2Config:
    """13 is odd, so that partitions of the embedding are uneven and padded."""
    return Qwen2Config(
        vocab_size=13,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
        architectures=["Qwen2ForCausalLM"],
    )


def rank_main(rank: int, out: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    for stage, tied, dtype in CASES:
        torch.manual_seed(stage + tied)
        folder = out / f"zero{stage}_{'tied' if tied else 'untied'}"
        model = AutoModelForCausalLM.from_config(tiny(tied), dtype=torch.float32)
        settings = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": stage},
            "bf16": {"enabled": dtype == "bf16"},
            "zero_allow_untested_optimizer": True,
        }
        model.model.norm.requires_grad_(False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [parameter for parameter in trained if parameter.dim() > 1], "weight_decay": 0.1},
            {"params": [parameter for parameter in trained if parameter.dim() == 1], "weight_decay": 0.0},
        ]
        engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=0.01), config=settings)
        ids = torch.arange(8).reshape(1, 8) + rank
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
        engine.save_checkpoint(str(folder))
        write_truth(engine, folder, stage, rank)


def write_truth(engine: deepspeed.DeepSpeedEngine, folder: Path, stage: int, rank: int) -> None:
    truth = {}
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            whole = safe_get_full_fp32_param(parameter)  # collective
            shape = parameter.ds_shape if stage == 3 else parameter.shape
            truth[name] = whole.detach().reshape(shape).clone()
        else:
            with deepspeed.zero.GatheredParameters(parameter, enabled=stage == 3):
                truth[name] = parameter.detach().clone()
    if rank == 0:
        save_file(truth, folder / "truth.safetensors")
        (folder / "config.json").write_text(json.dumps(engine.module.config.to_diff_dict(), default=str))


if __name__ == "__main__":
    mp.start_processes(rank_main, (Path(sys.argv[1]),), nprocs=RANKS, start_method="spawn")
