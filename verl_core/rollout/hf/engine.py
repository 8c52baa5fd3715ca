"""HfEngine: the RolloutEngine on plain torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from verl_core.config.errors import RunError, UserError
from verl_core.platforms.profiling import part
from verl_core.rollout.hf.cache import SlotCache
from verl_core.rollout.hf.control import Control
from verl_core.rollout.hf.generic import GenericDecoder
from verl_core.rollout.hf.graphs import StepGraphs
from verl_core.rollout.hf.llama_family import LlamaDecoder, is_llama_family
from verl_core.rollout.hf.scheduler import Generation
from verl_core.rollout.hf.shapes import Shapes
from verl_core.rollout.hf.stepper import Decoder, Stepper
from verl_core.rollout.hf.weights import WeightTable
from verl_core.rollout.parts import OnParts, Reporter
from verl_core.rollout.protocol import Completion, PauseMode, TokenRequest
from verl_core.rollout.rows import row_for

# Without cuDNN's attention, which spends a good part of a second on each new shape; here each prompt has its own.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class HfEngine:
    """Generates with the trainer's own weights, in this process. Keeps `verl_core.rollout.protocol.RolloutEngine`.

    It is made from a configuration; weights come with the first `update_weights`. On a GPU decode steps have few
    shapes and run as CUDA graphs (`Shapes`, `StepGraphs`).

    Args:
        model_config: transformers configuration of a causal language model.
        tokenizer: decodes text for stop strings; ids come from and go to the caller.
        device, dtype: where and in what the model runs.
        max_num_seqs: rows that run at the same time; further requests wait in a queue.
        max_model_len: longest prompt + response, tokens.
        eos_ids: every id that ends a sequence (`verl_core.models.tokenizer.eos_ids` collects them).
    """

    KEPT_ASLEEP = 64 * 2**20
    """Bytes of a cache that are not worth recording graphs anew after each sleep: that takes longer than a short
    generation, and each record that is dropped leaves some 200 bytes of host memory a kernel
    (tests/benchmarks/gpu_graph_memory.py)."""

    def __init__(
        self,
        model_config: Any,
        tokenizer: Any,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        max_num_seqs: int,
        max_model_len: int,
        eos_ids: Iterable[int],
    ):
        if max_num_seqs < 1:
            raise UserError(f"rollout.max_num_seqs is {max_num_seqs}, it must be at least 1")
        self.device = torch.device(device)
        self.tokenizer = tokenizer
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.eos_ids = frozenset(eos_ids)
        self.version = 0
        self.dtype = dtype
        self._weights = WeightTable(model_config, self.device, dtype)
        decoder = LlamaDecoder if is_llama_family(model_config) else GenericDecoder
        self._decoder: Decoder = decoder(model_config, self.device, dtype, max_model_len)
        self._control = Control()
        on_gpu = self.device.type == "cuda"
        self._shapes = Shapes(max_num_seqs, max_model_len, bucketed=on_gpu, lag=1 if on_gpu else 0)
        self._graphs = StepGraphs(self.device) if on_gpu and self._decoder.capturable else None
        self._cache: SlotCache | None = None
        self._stepper: Stepper | None = None
        self._addresses: tuple[int, ...] = ()  # of the weights that graphs read
        self._asleep = False
        self._half_updated = False  # rows ran while an update failed

    def generate(self, requests: Sequence[TokenRequest], on_parts: OnParts | None = None) -> list[Completion]:
        """Continues every request; completions come back in the order of the requests. `on_parts` hears of tokens on
        the way.

        Raises:
            UserError: a prompt is empty or leaves no room within max_model_len, or a sampling field is out of range.
            RunError: there are no weights yet, the engine is asleep, or an update of its weights fails meanwhile.
        """
        rows = [row_for(request, self.max_model_len, self.tokenizer) for request in requests]
        with self._control.generation(request.request_id for request in requests):
            if not self._weights.complete:
                raise RunError("the hf engine has no weights yet", "call update_weights before generate")
            if self._asleep:
                raise RunError("the hf engine is asleep", "call wake before generate")
            if not rows:
                return []
            slots = min(self.max_num_seqs, len(rows))
            reporter = Reporter(rows, on_parts) if on_parts is not None else None
            with torch.inference_mode(), self._attention():
                stepper = self._stepper_for(slots, max(len(row.request.ids) + row.limit for row in rows))
                generation = Generation(rows, stepper, self._shapes, slots, self.eos_ids, self.device)
                while not generation.done:
                    with part("token"), self._control.step() as aborted:
                        self._refuse_half_updated()
                        generation.step(self.version, aborted)
                    if reporter is not None:
                        reporter.step()
        return [row.completion() for row in rows]

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends these requests before the next token; they keep what they have (finish=abort). Ids that are not being
        generated are ignored. Thread-safe."""
        self._control.abort(request_ids)

    def pause(self, mode: PauseMode) -> None:
        """Brings the engine to a stand, see `Control.pause`. Thread-safe."""
        self._control.pause(mode)

    def resume(self) -> None:
        self._control.resume()

    def sleep(self) -> None:
        """Frees the KV cache and the graphs that use it, unless they are small (KEPT_ASLEEP). Weights shared with the
        trainer are the trainer's to move.

        Raises:
            RunError: a generation runs or is frozen; it would lose its cache.
        """
        with self._control.between_steps() as generating:
            if generating:
                raise RunError(
                    "the hf engine cannot sleep while it generates", "pause it with mode abort or wait first"
                )
            if self._graphs is None or self._cache is None or self._cache.nbytes > self.KEPT_ASLEEP:
                self._cache = self._stepper = None
                self._drop_graphs()
            self._asleep = True

    def wake(self) -> None:
        self._asleep = False

    def health(self) -> None:
        """Raises RunError once an update has failed while rows ran: in a process of its own the engine ends with that,
        and others go on with the rows."""
        if self._half_updated:
            raise RunError("an update of the hf engine's weights failed while rows ran", "start the engine again")

    def held_weights(self) -> Iterator[tuple[str, Tensor]]:
        """What it generates with, by Hugging Face name; of fused projections the parts of the copy."""
        tensors = self._weights.tensors
        yield from {**tensors, **self._decoder.copies(tensors)}.items()

    @torch.no_grad()
    def update_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes a full set of weights by Hugging Face name; tokens drawn afterwards carry `version`.

        Tensors of the engine's dtype and device are used where they lie and must stay valid until the next update;
        only fused projections are copies. When the giver changes them in place, it must call this again before the
        next generation. A generation that runs meanwhile goes on with the new weights from its next token; it ends with
        an error where the update fails.

        Raises:
            KeyError: an unknown name came or a weight is missing.
            ValueError: a tensor has the wrong shape. After either the engine has no weights.
        """
        with self._control.between_steps():
            with self._weights.taken(stream) as weights:
                self._decoder.load(weights)
            before, self._addresses = self._addresses, self._decoder.addresses()
            if before != self._addresses:
                self._drop_graphs()
            self.version = version

    def _refuse_half_updated(self) -> None:
        """No token is drawn from parts of two versions."""
        self._half_updated = not self._weights.complete
        self.health()

    def _stepper_for(self, slots: int, positions: int) -> Stepper:
        """The last generation's stepper and cache where they fit, else new ones. On a CPU the cache's length fits
        exactly, so that attention reads dense memory. Results depend, to the last bit, on the requests and not on what
        was generated before."""
        slots, positions = self._shapes.width(slots), self._shapes.reach(positions)
        if self._stepper is not None:
            spare = self._stepper.cache.positions - positions
            if self._stepper.cache.slots >= slots and (spare == 0 or (spare > 0 and self._shapes.bucketed)):
                return self._stepper
        self._cache = self._stepper = None  # before the new ones take memory
        self._drop_graphs()
        self._cache = SlotCache(slots, positions)
        self._stepper = Stepper(self._decoder, self._cache, self.device, self._graphs)
        return self._stepper

    def _attention(self) -> AbstractContextManager[None]:
        return sdpa_kernel(_ATTENTION) if self.device.type == "cuda" else nullcontext()

    def _drop_graphs(self) -> None:
        if self._graphs is not None:
            self._graphs.clear()
