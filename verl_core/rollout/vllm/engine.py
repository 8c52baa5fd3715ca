"""VllmEngine: the RolloutEngine on vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from verl_core.config.errors import RunError
from verl_core.rollout.stepped import SteppedEngine
from verl_core.rollout.vllm import adapter
from verl_core.rollout.vllm.core import VllmCore
from verl_core.rollout.vllm.options import VllmOptions
from verl_core.rollout.vllm.sampling import check_temperature


class VllmEngine(SteppedEngine[VllmCore]):
    """Made by `verl_core.rollout.vllm.make`. With lora_config, `update_weights` takes the adapter's tensors, by peft's
    names."""

    def __init__(self, options: VllmOptions):
        self._core: VllmCore
        super().__init__("vllm", options, lambda: self._make_core(options), check_temperature)

    def health(self) -> None:
        """Blocks while a step hangs; raises RunError when the engine or one of its workers has failed."""
        self._loop.health()
        if self._core.broken:
            raise RunError("a worker process of the vllm engine has died")

    def capacity_tokens(self) -> int:
        """Tokens the cache has room for."""
        return self._loop.between_steps(VllmCore.capacity_tokens)

    def _make_core(self, options: VllmOptions) -> VllmCore:
        self._core = VllmCore(options)
        return self._core

    def _checked(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        config = self.options.lora_config
        return super()._checked(stream) if config is None else adapter.checked(stream, config["r"])
