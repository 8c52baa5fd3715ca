"""The trainer's end of `delta`: nothing is gathered, each rank sends what changed in its own shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from verl_core.config.errors import RunError
from verl_core.training.protocol import TrainEngine
from verl_core.weights.agreement import of_all_ranks
from verl_core.weights.buckets import BUCKET_BYTES, Item, as_bytes, dtype_name
from verl_core.weights.delta.codec import bits, encode
from verl_core.weights.delta.placement import own_part
from verl_core.weights.hashing import tensor_hash
from verl_core.weights.link import Outgoing
from verl_core.weights.mailbox import Mailbox
from verl_core.weights.sending import Clock, Delivery, Sent, Tell, answers_of


class DeltaSender:
    """Made on all ranks of the trainer, over torch's default process group. A copy of the shards as they were sent last
    waits in host memory. All weights go when an engine does not hold the version that was sent last.

    Args:
        tells: the engines; empty on every rank of the trainer but the first.
        device: where shards are compared and buckets lie.
        dtype, bucket_bytes, verify, address, timeout_s: as of BroadcastSender. `address` is this rank's own machine.
    """

    def __init__(
        self,
        tells: Sequence[Tell],
        *,
        device: torch.device | str,
        dtype: torch.dtype | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        verify: bool = False,
        address: str = "127.0.0.1",
        timeout_s: float = 300.0,
    ):
        self._tells, self._device, self._dtype = tells, torch.device(device), dtype
        self._verify, self._timeout_s = verify, timeout_s
        self._last: dict[str, Tensor] = {}
        self._version: int | None = None
        engines = max(of_all_ranks(len(tells)))
        self._link = Outgoing(engines, self._device, bucket_bytes, address, timeout_s)
        places = of_all_ranks(self._link.place)
        opened = []
        for i, tell in enumerate(tells):
            links = [{**self._link.invitation(i), **place} for place in places]
            opened.append(tell("weights_open", type="delta", links=links))
        try:
            self._link.join(opened)
            answers_of(opened, timeout_s)
        except Exception:
            if tells:
                _turn_away(places[1:])
            raise

    def send(self, engine: TrainEngine, version: int) -> Sent:
        clock = Clock()
        whole = any(of_all_ranks(self._engines_lack_base()))
        counts = {"changed": 0, "elements": 0}
        base, self._version = self._version, None  # until all went well, nobody knows what the engines hold
        message = {"version": version, "base": base, "whole": whole, "verify": self._verify}
        delivery = Delivery(self._tells, message, self._link.abort)
        error: BaseException | None = None
        sent = 0
        try:
            sent = self._link.send(self._entries(engine, whole, counts))
            delivery.finish(self._timeout_s)
        except Exception as raised:
            self._link.fail(str(raised))
            error = delivery.blame(raised)
        errors = of_all_ranks(str(error) if error else None)
        if error is not None:
            raise error
        if other := next(filter(None, errors), None):
            raise RunError(f"another rank could not send weights: {other}")
        self._version = version
        return Sent(version, sent, clock.seconds, whole, **counts)

    def _engines_lack_base(self) -> bool:
        """An engine that cannot say lacks it: what is wrong with it comes out in the transfer, which all ranks leave
        together."""
        if self._version is None:
            return True
        try:
            held = answers_of([tell("weights_version") for tell in self._tells], self._timeout_s)
        except Exception:
            return True
        return any(answer["version"] != self._version for answer in held)

    @torch.no_grad()
    def _entries(self, engine: TrainEngine, whole: bool, counts: dict[str, int]) -> Iterator[Item]:
        for name, tensor in engine.named_shards():
            if (part := own_part(name, tensor)) is None:
                continue
            shard, box = part
            dtype = self._dtype if self._dtype and shard.is_floating_point() else shard.dtype
            new = shard.detach().to(self._device, dtype).contiguous()
            note: dict[str, Any] = {"dtype": dtype_name(dtype), "shape": list(tensor.shape), "box": box.note()}
            note["hash"] = int(tensor_hash(new))
            if whole:
                how: dict[str, Any] = {"how": "whole", "changed": new.numel()}
                payload = as_bytes(new)
            else:
                old = self._last[name].to(self._device, non_blocking=True)
                payload, how = encode(bits(new).view(-1), bits(old).view(-1))
            counts["changed"] += how["changed"]
            counts["elements"] += new.numel()
            yield name, payload, {**note, **how}
            self._remember(name, new)

    def _remember(self, name: str, new: Tensor) -> None:
        if name not in self._last:
            pinned = self._device.type == "cuda"  # copies at the link's pace
            self._last[name] = torch.empty_like(new, device="cpu", pin_memory=pinned)
        self._last[name].copy_(new)

    def close(self) -> None:
        self._link.abort()


def _turn_away(places: Sequence[dict[str, Any]]) -> None:
    """Ends the waiting of the other ranks for engines that will not come."""
    for place in places:
        Mailbox.join(**place).post("hello", {"failed": True})
