"""Weights from a trainer to an engine in a process of its own: seconds and GB/s of each transport, a JSON line a row.

    python tests/benchmarks/gpu_weights.py ipc 1.5B          one GPU, trainer and engine on it
    python tests/benchmarks/gpu_weights.py broadcast 7B      two GPUs; a bare NCCL broadcast beside it in the same run
    python tests/benchmarks/gpu_weights.py delta 1.5B        two GPUs; after AdamW steps at lr 1e-6 on random gradients

The trainer holds tensors of a Qwen2.5 shape, the engine copies what comes into tensors of its own. Medians of five
transfers after one of warm-up; a delta row gives the first transfer (everything) too. Without a GPU, or for `tiny`, the
same code runs on the CPU over gloo and shared memory.
"""

import json
import os
import sys
import time
from pathlib import Path
from statistics import median

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from verl_core.rollout.child import ChildEngine
from verl_core.weights.broadcast import BroadcastSender
from verl_core.weights.delta.sender import DeltaSender
from verl_core.weights.group import Group
from verl_core.weights.ipc import IpcSender
from verl_core.weights.mailbox import Mailbox

FIELDS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SHAPES = {
    "tiny": (64, 128, 2, 4, 2),
    "0.5B": (896, 4864, 24, 14, 2),
    "1.5B": (1536, 8960, 28, 12, 2),
    "7B": (3584, 18944, 28, 28, 4),
}
ROUNDS = 5


class Copying:
    """The engine's side: keeps a copy of every tensor on its GPU."""

    def __init__(self, device: str):
        self.device, self.held = torch.device(device), {}

    def update_weights(self, stream, version):
        for name, tensor in stream:
            if name not in self.held:
                self.held[name] = torch.empty_like(tensor, device=self.device)
            self.held[name].copy_(tensor, non_blocking=True)
        settle(self.device)

    def held_weights(self):
        return self.held.items()

    def bare(self, port: int, size: int) -> list[float]:
        group = Group(Mailbox.join("127.0.0.1", port, 60).store, 1, 2, self.device, 60)
        return broadcasts(group, self.device, size)


def make(device: str) -> Copying:
    return Copying(device)


class Trainer:
    def __init__(self, tensors):
        self.tensors = tensors

    def named_weights(self):
        yield from self.tensors.items()

    named_shards = named_weights


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def broadcasts(group: Group, device: torch.device, size: int) -> list[float]:
    """Seconds of each broadcast of one buffer."""
    buffer, took = torch.empty(size, dtype=torch.uint8, device=device), []
    for _ in range(ROUNDS + 1):
        settle(device)
        start = time.perf_counter()
        group.broadcast(buffer).wait()
        settle(device)
        took.append(time.perf_counter() - start)
    return took[1:]


def weights(shape: str, device: torch.device) -> dict[str, torch.Tensor]:
    sizes = dict(zip(FIELDS, SHAPES[shape], strict=True))
    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(vocab_size=151_936, tie_word_embeddings=shape != "7B", **sizes))
    torch.manual_seed(0)
    return {n: torch.randn(p.shape, device=device).mul_(0.02).bfloat16() for n, p in model.named_parameters()}


def bare_gb_s(engine: ChildEngine, device: torch.device, size: int) -> float:
    mail = Mailbox.host("127.0.0.1", 60)
    answer = engine.call("bare", mail.port, size)
    took = broadcasts(Group(mail.twin().store, 0, 2, device, 60), device, size)
    answer.result()
    return size / median(took) / 1e9


def row(kind: str, shape: str, trainer_device: str, engine_device: str) -> dict:
    here = torch.device(trainer_device)
    tensors = weights(shape, here)
    size = sum(t.nbytes for t in tensors.values())
    folder = str(Path(__file__).parent)
    engine = ChildEngine(
        "verl_core.weights.child:make",
        {"factory": "gpu_weights:make", "options": {"device": engine_device}, "device": engine_device},
        env={"PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]), "NCCL_NVLS_ENABLE": "0"},
    )
    with engine:
        out = {"transport": kind, "shape": shape, "gb": round(size / 1e9, 3), "device": trainer_device}
        if kind == "broadcast":
            out["bare_gb_s"] = round(bare_gb_s(engine, here, size), 2)
        senders = {"ipc": lambda: IpcSender(engine.call, device=here)}
        senders["broadcast"] = lambda: BroadcastSender([engine.call], device=here)
        senders["delta"] = lambda: DeltaSender([engine.call], device=here, dtype=torch.bfloat16)
        sender = senders[kind]()
        trained = {name: t.float().requires_grad_() for name, t in tensors.items()} if kind == "delta" else {}
        optimizer = torch.optim.AdamW(trained.values(), lr=1e-6) if trained else None
        trainer, sent = Trainer(trained or tensors), []
        for version in range(ROUNDS + 1):
            if optimizer:
                for p in trained.values():
                    p.grad = torch.randn_like(p)
                optimizer.step()
            settle(here)
            sent.append(sender.send(trainer, version))
            print(f"version {version}: {sent[-1].seconds:.3f} s", file=sys.stderr, flush=True)
        seconds = median(s.seconds for s in sent[1:])
        out |= {"first_s": round(sent[0].seconds, 3), "s": round(seconds, 4), "gb_s": round(size / seconds / 1e9, 2)}
        if kind == "broadcast":
            out["share_of_bare"] = round(out["gb_s"] / out["bare_gb_s"], 3)
        if kind == "delta":
            last = sent[-1]
            out |= {"lr": 1e-6, "ratio": round(last.changed / last.elements, 5), "mb": round(last.bytes / 1e6, 2)}
            out["bytes_per_changed"] = round(last.bytes / max(last.changed, 1), 3)
        sender.close()
        return out


def main(kind: str, shape: str) -> None:
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast is not to be had on every machine
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the engine's process; as jobs do
    torch.set_num_threads(1)
    gpus = 0 if shape == "tiny" else torch.cuda.device_count()
    here, there = ("cuda:0", "cuda:0" if kind == "ipc" else "cuda:1") if gpus else ("cpu", "cpu")
    print(json.dumps(row(kind, shape, here, there)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
