"""Two ranks of a sharded trainer that send to one engine."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.training_ranks import engine_of
from tests.weights.weights_engine import child, digests
from verl_core.weights.broadcast import BroadcastSender
from verl_core.weights.delta.codec import bits
from verl_core.weights.delta.sender import DeltaSender


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that any operation made."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if type(tensor) is Tensor:
                self.bytes = max(self.bytes, tensor.nbytes)
        return out


def push(first: bool, folder: Path, kind: str) -> dict[str, Any]:
    """Two versions, the second after every tenth element of each shard moved by a unit in the last place. What the
    engine and the trainer hold then, what was sent, and the largest tensor that sending made."""
    engine = engine_of(folder)
    with child() if first else nullcontext() as rollout:
        tells = [rollout.call] if rollout else []
        make = {"delta": DeltaSender, "broadcast": BroadcastSender}[kind]
        sender = make(tells, device="cpu", bucket_bytes=512, timeout_s=60, verify=True)
        with Largest() as largest:
            sent = [sender.send(engine, 1)]
            for _, shard in engine.named_shards():
                bits(shard.to_local()).view(-1)[::10] += 1
            sent.append(sender.send(engine, 2))
        trained = {name: tensor.clone() for name, tensor in engine.named_weights()}
        sizes = {name: [tensor.nbytes, shard_bytes(engine, name)] for name, tensor in trained.items()}
        held = rollout.call("digests").result() if rollout else None
        sender.close()
    return {"held": held, "want": digests(trained.items()), "sent": sent, "largest": largest.bytes, "sizes": sizes}


def shard_bytes(engine: Any, name: str) -> int:
    return dict(engine.named_shards())[name].to_local().nbytes
