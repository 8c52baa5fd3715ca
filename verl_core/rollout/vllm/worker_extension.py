"""What rlx adds to vLLM's workers: taking weights while the engine lives, and giving back the cache on the CPU.

vLLM mixes this class into the worker of every rank (`worker_extension_cls`); its methods are called on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from verl_core.rollout.vllm import adapter
from verl_core.rollout.vllm.weights import Packed, Reader


class WorkerExtension:
    """The attributes below are the worker's own (vllm.v1.worker.gpu_worker.Worker)."""

    device: torch.device
    model_config: Any
    model_runner: Any
    vllm_config: Any

    def take_over_logps(self) -> None:
        """The drawn ids' log-probs by a kernel of our own, see `logps_triton`; the older model runner keeps its own."""
        if self.vllm_config.use_v2_model_runner:
            from verl_core.rollout.vllm.logps_triton import take_over

            take_over()

    def begin_weights(self) -> None:
        """Opens an update. Where vLLM keeps its layers as they come, they are written in place. Where it repacks them
        for its kernels (every linear layer on the CPU, experts) it takes them apart again and repacks each layer
        when the layer is complete; memory that a CUDA graph knows stays where it is."""
        self._taken: set[str] = set()
        self._reader = Reader()
        self._repacked = self.device.type == "cpu" or self.model_config.is_moe
        if self._repacked:
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

            initialize_layerwise_reload(self.model_runner.get_model())

    @torch.no_grad()
    def take_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Takes Hugging Face names and whole tensors; each rank keeps its shard."""
        if self._repacked:  # held until its layer is complete, longer than the giver promises
            stream = ((name, tensor.clone()) for name, tensor in stream)
        self._taken |= self.model_runner.get_model().load_weights(stream) or set()

    def take_packed(self, packed: Packed) -> None:
        self.take_weights(self._reader.tensors(packed))
        if self.device.type == "cuda":  # the giver uses the buffer again
            torch.cuda.synchronize(self.device)

    def end_weights(self) -> list[str]:
        """Closes the update, also one that broke off; returns the parameters of vLLM's model that got nothing."""
        del self._reader  # the giver frees the buffer after this
        model = self.model_runner.get_model()
        if self._repacked:
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            finalize_layerwise_reload(model, self.model_config)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return sorted({name for name, _ in model.named_parameters()} - self._taken)

    def begin_adapter(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._reader = Reader()

    def collect_adapter(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        self._tensors |= {name: tensor.to("cpu", copy=True) for name, tensor in stream}

    def collect_packed_adapter(self, packed: Packed) -> None:
        self.collect_adapter(self._reader.tensors(packed))

    def end_adapter(self, config: Mapping[str, Any] | None) -> None:
        """Takes the collected adapter, see `adapter.take`; None: what came broke off."""
        tensors = self._tensors
        del self._tensors, self._reader
        if config is not None:
            adapter.take(self.model_runner.lora_manager, tensors, config)

    def free_cpu_cache(self) -> int:
        """Gives the cache's memory back to the system; returns its size in bytes."""
        self._cache_bytes = {}
        for tensor in self.model_runner.kv_caches:
            storage = tensor.untyped_storage()
            if storage.nbytes():
                self._cache_bytes[storage] = storage.nbytes()
                storage.resize_(0)
        return sum(self._cache_bytes.values())

    def take_cpu_cache(self) -> None:
        for storage, size in self._cache_bytes.items():
            storage.resize_(size).fill_(0)
