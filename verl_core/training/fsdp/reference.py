"""What a KL over the whole vocabulary needs of the reference: its hidden states, in host memory, and its output layer,
from which its logits follow a chunk of tokens at a time. So its other weights do not lie beside the trained ones, and
logits of all tokens never exist. A mini-batch costs one pass through the reference's layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from verl_core.algorithms.loss import Need
from verl_core.batch import Batch
from verl_core.training.fsdp.network import READS
from verl_core.training.fsdp.shard import full
from verl_core.training.protocol import MicroBatching

if TYPE_CHECKING:
    from verl_core.training.fsdp.engine import FsdpEngine


def with_reference(
    engine: FsdpEngine, batch: Batch, needs: frozenset[Need], micro: MicroBatching | None = None
) -> tuple[Batch, dict[str, Tensor] | None]:
    """The batch with the hidden states of the engine's snapshot "ref", and the parameters of its output layer on the
    device, in the type of computing; nothing of it where no KL is needed. Collective."""
    if Need.FULL_KL not in needs:
        return batch, None
    with engine.use("ref"):
        hidden_ND = engine.forward(batch, frozenset({Need.HIDDEN}), micro=micro)[Need.HIDDEN]
        swapped = engine.adapter is None  # below an adapter the output layer is the reference's all the time
        head = {
            name: full(p).detach().to(engine.compute_dtype, copy=swapped)
            for name, p in engine.network.output_layer.named_parameters()
        }
    return batch.drop().add(**{READS[Need.FULL_KL]: hidden_ND}), head
