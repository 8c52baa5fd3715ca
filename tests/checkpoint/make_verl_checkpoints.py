"""Writes verl_fixtures/: checkpoints of tiny models as the FSDPCheckpointManager of veRL 0.9.1 leaves them.

    python -m venv verl && verl/bin/pip install --no-deps verl==0.9.1
    verl/bin/pip install torch transformers peft accelerate omegaconf tensordict codetiming torchdata pyvers
    verl/bin/python tests/checkpoint/make_verl_checkpoints.py

FSDP1 and FSDP2 on the CPU with gloo. Optimizer files, and of most cases the random states, are not written: no merge
reads them. Each case is a run folder; `<case>.safetensors` has the whole state dict before it was sharded.
"""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from omegaconf import OmegaConf
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.fsdp_utils import apply_fsdp2, get_fsdp_wrap_policy

STEP = 3
FOLDER = Path(__file__).with_name("verl_fixtures")
SIZES = {
    "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 4,
    "head_dim": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "moe_intermediate_size": 6,
    "num_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
TARGETS = ["q_proj", "v_proj", "down_proj"]


@dataclass
class Case:
    name: str
    mesh: tuple[int, ...]
    kind: str = "qwen2"
    tied: bool = False
    dtype: torch.dtype = torch.float32
    lora: bool = False
    lora_only: bool = False
    critic: bool = False
    fsdp: int = 2
    states: bool = False
    """Keep the files of schedule and random states."""


CASES = [
    Case("one_rank", (1,)),
    Case("tied_two_ranks", (2,), tied=True, states=True),
    Case("bf16_four_ranks", (4,), dtype=torch.bfloat16),  # k_proj has 2 rows: two ranks have none of it
    Case("moe_replicated", (2, 2), kind="qwen3_moe"),
    Case("lora_two_ranks", (2,), tied=True, lora=True),
    Case("lora_only", (1,), tied=True, lora=True, lora_only=True),
    Case("critic", (2,), critic=True, dtype=torch.bfloat16),
    Case("fsdp1_one_rank", (1,), fsdp=1, tied=True),  # plain tensors
    Case("fsdp1_two_ranks", (2,), fsdp=1, tied=True),
    Case("fsdp1_replicated", (2, 2), fsdp=1, kind="qwen3_moe", dtype=torch.bfloat16),
]


def model_of(case: Case) -> nn.Module:
    torch.manual_seed(len(case.name))
    config = AutoConfig.for_model(case.kind, tie_word_embeddings=case.tied, **SIZES)
    config.num_labels = 1
    auto = AutoModelForTokenClassification if case.critic else AutoModelForCausalLM
    model = auto.from_config(config)
    if case.lora:
        model = get_peft_model(model, LoraConfig(r=2, lora_alpha=8, target_modules=TARGETS, task_type="CAUSAL_LM"))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5)
    return model.to(case.dtype)


def sharded(model: nn.Module, case: Case) -> nn.Module:
    """As veRL's engine wraps it."""
    mesh = init_device_mesh("cpu", case.mesh, mesh_dim_names=("ddp", "fsdp")[-len(case.mesh) :])
    if case.fsdp == 2:
        apply_fsdp2(model, {"mesh": mesh}, OmegaConf.create({"wrap_policy": {}}))
        return model
    strategy = ShardingStrategy.FULL_SHARD if len(case.mesh) == 1 else ShardingStrategy.HYBRID_SHARD
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=get_fsdp_wrap_policy(model),
        device_id=torch.device("cpu"),
        sharding_strategy=strategy,
        device_mesh=mesh,
        use_orig_params=case.lora,
    )


def write(rank: int, case: Case, address: str) -> None:
    size = torch.Size(case.mesh).numel()
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    torch.manual_seed(rank)
    model = model_of(case)
    run = FOLDER / case.name
    if rank == 0:
        save_file({k: v.clone() for k, v in model.state_dict().items()}, FOLDER / f"{case.name}.safetensors")
    model = sharded(model, case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    contents = ["model", "extra"] if case.states else ["model"]
    manager = FSDPCheckpointManager(
        model,
        optimizer,
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        checkpoint_config=OmegaConf.create(
            {"save_contents": contents, "load_contents": contents, "save_lora_only": case.lora_only}
        ),
    )
    for _ in range(STEP):
        optimizer.step()
        manager.lr_scheduler.step()
    role = "critic" if case.critic else "actor"
    manager.save_checkpoint(str(run / f"global_step_{STEP}" / role), global_step=STEP)
    if rank == 0:
        (run / "latest_checkpointed_iteration.txt").write_text(str(STEP))
    dist.destroy_process_group()


def main(write: Callable[[int, Case, str], None] = write) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    chosen = sys.argv[1:]
    for number, case in enumerate(CASES):
        if chosen and case.name not in chosen:
            continue
        shutil.rmtree(FOLDER / case.name, ignore_errors=True)
        (FOLDER / case.name).mkdir(parents=True)
        address = f"tcp://127.0.0.1:{29_600 + number}"
        mp.start_processes(write, (case, address), torch.Size(case.mesh).numel())


if __name__ == "__main__":
    main()
