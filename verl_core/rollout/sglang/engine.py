"""SglangEngine: the RolloutEngine on SGLang."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from verl_core.config.errors import RunError, UserError
from verl_core.rollout.parts import OnParts, Reporter
from verl_core.rollout.protocol import Completion, TokenRequest
from verl_core.rollout.rows import row_for
from verl_core.rollout.sglang.core import SglangCore
from verl_core.rollout.sglang.options import SglangOptions, server_words
from verl_core.rollout.sglang.sampling import check_temperature
from verl_core.rollout.sglang.server import Server
from verl_core.rollout.stepping import PauseMode, StepLoop
from verl_core.rollout.weight_names import WeightNames


class SglangEngine:
    """Keeps `verl_core.rollout.protocol.RolloutEngine`; all methods are thread-safe. Calls of `generate` that overlap
    share SGLang's batch. Made by `verl_core.rollout.sglang.make`, in the main thread.

    Args:
        memory_share: as `options.server_words` takes it.
    """

    def __init__(self, options: SglangOptions, memory_share: float | None):
        self.options = options
        self._server = Server(server_words(options, memory_share))
        self._loop: StepLoop[SglangCore] = StepLoop(lambda: SglangCore(options, self._server), "sglang")

    def generate(self, requests: Sequence[TokenRequest], on_parts: OnParts | None = None) -> list[Completion]:
        """Continues every request; completions come back in the order of the requests.

        Raises:
            UserError: a prompt is empty, leaves no room within max_model_len or holds an id that the model lacks, or
                a sampling field is out of range.
            RunError: there are no weights yet, the engine is asleep, or it failed.
        """
        for request in requests:
            check_temperature(request)
        tokenizer = self._tokenizer if any(request.sampling.stop for request in requests) else None
        rows = [row_for(request, self.options.max_model_len, tokenizer) for request in requests]
        self._loop.run(rows, Reporter(rows, on_parts).step if on_parts is not None else None)
        return [row.completion() for row in rows]

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends these requests with what SGLang has told of them (it tells every 16 tokens)."""
        self._loop.abort(request_ids)

    def pause(self, mode: PauseMode) -> None:
        """Brings the engine to a stand, see `StepLoop.pause`."""
        self._loop.pause(mode)

    def resume(self) -> None:
        self._loop.resume()

    def sleep(self) -> None:
        """Gives back cache, weights and CUDA graphs. Asleep already: nothing.

        Raises:
            RunError: rows run or are frozen.
            UserError: an engine that was made without enable_sleep.
        """
        if not self.options.enable_sleep:
            raise UserError("this sglang engine was made without enable_sleep", "make it with enable_sleep=true")

        def job(core: SglangCore) -> None:
            if self._loop.generating:
                raise RunError(
                    "the sglang engine cannot sleep while it generates", "pause it with mode abort or wait first"
                )
            core.sleep()

        self._loop.between_steps(job)

    def wake(self) -> None:
        """Takes all memory again. After sleep at level 2 the weights come with the next `update_weights`."""
        self._loop.between_steps(SglangCore.wake)

    def update_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes a full set of weights by Hugging Face name; tokens drawn afterwards carry `version`.

        A sleeping engine takes back the memory of its weights and not yet that of its cache. Rows that run meanwhile go
        on with the new weights, their cache computed anew; the prefix cache starts empty.

        Raises:
            KeyError: an unknown name came or a weight is missing.
            ValueError: a tensor has the wrong shape. After either the engine has no weights.
        """
        checked = self._names.checked(stream)
        self._loop.between_steps(lambda core: core.update_weights(checked, version))

    def load_adapter(self, folder: str, version: int) -> None:
        """Takes a new PEFT adapter from a folder; tokens of requests that come afterwards carry `version`.

        Raises:
            RunError: the engine was made without an adapter, or generates.
        """
        if self.options.lora is None:
            raise RunError("this sglang engine serves no adapter", "make it with lora=FOLDER")

        def job(core: SglangCore) -> None:
            if self._loop.generating:
                raise RunError("an adapter cannot change while the sglang engine generates", "pause it with mode wait")
            core.load_adapter(folder, version)

        self._loop.between_steps(job)

    def health(self) -> None:
        """Raises RunError when the engine or one of its schedulers has failed. One that hangs ends by itself, after
        SGLang's own `watchdog_timeout` (300 s)."""
        self._server.check()
        self._loop.health()

    def capacity_tokens(self) -> int:
        """Tokens the cache has room for."""
        return self._server.capacity_tokens()

    def close(self) -> None:
        self._loop.close()

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        folder = self.options.tokenizer or self.options.model
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=self.options.trust_remote_code)

    @cached_property
    def _names(self) -> WeightNames:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(self.options.model, trust_remote_code=self.options.trust_remote_code)
        return WeightNames(config, getattr(torch, self.options.dtype))
