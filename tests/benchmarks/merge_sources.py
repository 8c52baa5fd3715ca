"""Checkpoints for `bench_merge.py`, as many ranks leave them; one process plays the ranks one after the other, over no
network: random float32 weights of Qwen2.5's shapes, the same for every format."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

SHAPES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 1000},
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2, "vocab_size": 151936},
    "3b": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
           "num_key_value_heads": 2, "vocab_size": 151936},
}  # fmt: skip


def make_verl(folder: Path, size: str, ranks: int) -> None:
    """What veRL's FSDP2 workers save in `folder`, their actor's: a pickle a rank, the tied head under both names."""
    folder.mkdir(parents=True)
    for rank in range(ranks):
        with _state(size, rank, ranks) as state:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
            torch.save(state, folder / f"model_world_size_{ranks}_rank_{rank}.pt")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    _config(size).save_pretrained(folder / "huggingface")


def make_dcp(folder: Path, size: str, ranks: int) -> None:
    """What accelerate saves in `folder` by way of torch.distributed.checkpoint: `.metadata`, a `.distcp` a rank."""
    folder.mkdir(parents=True)
    writer, planners, plans = FileSystemWriter(folder), [], []
    for rank in range(ranks):
        with _state(size, rank, ranks, device="meta") as state:
            planners.append(DefaultSavePlanner())
            planners[rank].set_up_planner({"model": state}, is_coordinator=rank == 0)
            writer.set_up_storage_writer(is_coordinator=rank == 0)
            plans.append(writer.prepare_local_plan(planners[rank].create_local_plan()))
    plans, metadata = planners[0].create_global_plan(plans)
    written = []
    for rank, plan in enumerate(writer.prepare_global_plan(plans)):
        with _state(size, rank, ranks) as state:
            planner = DefaultSavePlanner()
            planner.set_up_planner({"model": state}, is_coordinator=False)
            written.append(writer.write_data(planner.finish_plan(plan), planner).wait())
    writer.finish(metadata, written)
    _config(size).save_pretrained(folder / "huggingface")


def _config(size: str) -> PretrainedConfig:
    config = AutoConfig.for_model("qwen2", tie_word_embeddings=True, **SHAPES[size])
    config.architectures = ["Qwen2ForCausalLM"]
    return config


@contextmanager
def _state(size: str, rank: int, ranks: int, device: str = "cpu") -> Iterator[dict[str, DTensor]]:
    """A rank's rows of every tensor but the tied head, while the process is that rank."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(_config(size))
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    torch.manual_seed(rank)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",))
        yield {name: _rows(shape, rank, mesh, device) for name, shape in shapes.items()}
    finally:
        dist.destroy_process_group()


def _rows(shape: torch.Size, rank: int, mesh: dist.DeviceMesh, device: str) -> DTensor:
    rows = -(-shape[0] // mesh.size())
    count = max(0, min(rows, shape[0] - rank * rows))
    local = torch.randn((count, *shape[1:]), device=device)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
