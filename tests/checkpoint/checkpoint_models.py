"""Tiny real models and their engine states, and a way to run a function on two gloo ranks."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from verl_core.checkpoint import CheckpointStore, save_huggingface_files, save_role, state_bytes
from verl_core.training.protocol import EngineState

CASES = [(True, torch.float32), (False, torch.float32), (True, torch.bfloat16), (False, torch.bfloat16)]  # tied, dtype


def tiny_model(tied: bool, dtype: torch.dtype = torch.float32, seed: int = 0, vocabulary: int = 97) -> PreTrainedModel:
    """A two-layer Qwen2; 97 is prime, so that no number of ranks divides the embedding evenly."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def engine_state(model: PreTrainedModel, seed: int = 1) -> EngineState:
    """Weights as the model holds them (a tied head under both names), Adam moments, a schedule."""
    generator = torch.Generator().manual_seed(seed)
    moments = {
        f"{key}/{name}": torch.randn(p.shape, generator=generator).to(p.dtype)
        for key in ("exp_avg", "exp_avg_sq")
        for name, p in model.named_parameters()
    }
    return EngineState(dict(model.state_dict()), moments, {"schedule": {"last_epoch": 3}, "lr": 1e-6, "step": 3})


def sharded(state: EngineState) -> EngineState:
    """The state spread over the present ranks as FSDP2 and tensor parallelism would: rows, columns, replicas, plain."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    kept: dict[int, torch.Tensor] = {}

    def spread(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name.endswith("k_proj.bias"):
            return tensor  # plain: a replicated buffer
        if name.endswith("down_proj.weight"):
            placement = Shard(1)  # columns: local pieces are not contiguous
        else:
            placement = Replicate() if name.endswith("input_layernorm.weight") else Shard(0)
        return kept.setdefault(tensor.data_ptr(), distribute_tensor(tensor, mesh, [placement]))  # ties stay ties

    return EngineState(
        {name: spread(name, tensor) for name, tensor in state.weights.items()},
        {name: spread(name, tensor) for name, tensor in state.optimizer.items()},
        state.scalars,
    )


def on_ranks(count: int, function: Callable[..., None], *arguments) -> None:
    """Runs `function(*arguments)` on `count` gloo ranks in forked processes (fresh ones would import torch for longer
    than the tests take); the first exception is raised here."""
    with TemporaryDirectory() as folder:  # they meet at a file: a port that is free now may be taken by then
        meeting = f"{folder}/ranks"
        mp.start_processes(_rank, (count, meeting, function, arguments), nprocs=count, start_method="fork")


def _rank(rank: int, count: int, meeting: str, function: Callable[..., None], arguments: tuple) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count)
    try:
        function(*arguments)
    finally:
        dist.destroy_process_group()


def run_of(root: Path, tied: bool, dtype: torch.dtype) -> Path:
    return root / f"{'tied' if tied else 'untied'}-{str(dtype).removeprefix('torch.')}"


def save_run(run: Path, model: PreTrainedModel, step: int = 3, role: str = "actor") -> Path:
    """A run directory with one checkpoint of `model`, written by one process."""
    store = CheckpointStore(run / "checkpoints")
    with store.saving(step) as folder:
        save_role(folder / role, engine_state(model))
        save_huggingface_files(folder / role, config=model.config, generation_config=model.generation_config)
    return run / "checkpoints" / f"global_step_{step}"


def write_run_on_two(root: Path) -> None:
    """On two ranks: a run for each of CASES, and `small`: tensors with fewer rows than ranks, no rows, no axes."""
    for tied, dtype in CASES:
        model = tiny_model(tied, dtype)
        store = CheckpointStore(run_of(root, tied, dtype) / "checkpoints")
        state = sharded(engine_state(model))
        folder = [store.begin(3, state_bytes(state)) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder)
        save_role(folder[0] / "actor", state)
        dist.barrier()
        if dist.get_rank() == 0:
            save_huggingface_files(folder[0] / "actor", config=model.config, generation_config=model.generation_config)
            store.commit(3)
    mesh = init_device_mesh("cpu", (2,))
    state = small_state()
    for name in ("one", "none"):
        state.weights[name] = distribute_tensor(state.weights[name], mesh, [Shard(0)])
    save_role(root / "small", state)


def small_state() -> EngineState:
    return EngineState({"one": torch.tensor([[1.0, 2.0]]), "none": torch.empty(0, 3), "scalar": torch.tensor(7.0)})
