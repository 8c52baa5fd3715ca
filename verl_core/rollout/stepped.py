"""What engines on a serving library have in common: a RolloutEngine whose core a StepLoop drives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from verl_core.config.errors import RunError, UserError
from verl_core.rollout.engine_options import EngineOptions
from verl_core.rollout.parts import OnParts, Reporter
from verl_core.rollout.protocol import Completion, PauseMode, TokenRequest
from verl_core.rollout.rows import row_for
from verl_core.rollout.stepping import StepLoop, Stepper
from verl_core.rollout.weight_names import WeightNames


class Core(Stepper, Protocol):
    """The library's engine, used from the loop's thread alone."""

    def sleep(self) -> None: ...

    def wake(self) -> None: ...

    def update_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """The stream is checked already. After an error the engine has no weights."""
        ...

    def load_adapter(self, folder: str, version: int) -> None: ...


class SteppedEngine[C: Core]:
    """Keeps `verl_core.rollout.protocol.RolloutEngine`; all methods are thread-safe. Calls of `generate` that overlap
    share the library's batch.

    Args:
        name: the library's, for messages.
        make: makes the core, in the loop's thread.
        check: raises UserError for a request that the library would bend or refuse.
    """

    def __init__(self, name: str, options: EngineOptions, make: Callable[[], C], check: Callable[[TokenRequest], None]):
        self.options = options
        self._name, self._check = name, check
        self._loop: StepLoop[C] = StepLoop(make, name)

    def generate(self, requests: Sequence[TokenRequest], on_parts: OnParts | None = None) -> list[Completion]:
        """Continues every request; completions come back in the order of the requests. `on_parts` hears of tokens on
        the way.

        Raises:
            UserError: a prompt is empty or leaves no room within max_model_len, or a sampling field is out of range.
            RunError: there are no weights yet, the engine is asleep, or it failed.
        """
        for request in requests:
            self._check(request)
        tokenizer = self._tokenizer if any(request.sampling.stop for request in requests) else None
        rows = [row_for(request, self.options.max_model_len, tokenizer) for request in requests]
        self._loop.run(rows, Reporter(rows, on_parts).step if on_parts is not None else None)
        return [row.completion() for row in rows]

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends these requests with the tokens that the library has told of."""
        self._loop.abort(request_ids)

    def pause(self, mode: PauseMode) -> None:
        """Brings the engine to a stand, see `StepLoop.pause`."""
        self._loop.pause(mode)

    def resume(self) -> None:
        self._loop.resume()

    def sleep(self) -> None:
        """Gives back cache and weights (on the CPU: the cache). Asleep already: nothing.

        Raises:
            RunError: rows run or are frozen; they would lose their cache.
            UserError: an engine that was made without enable_sleep.
        """
        if not self.options.enable_sleep:
            raise UserError(f"this {self._name} engine was made without enable_sleep", "make it with enable_sleep=true")

        def job(core: C) -> None:
            if self._loop.generating:
                what = f"the {self._name} engine cannot sleep while it generates"
                raise RunError(what, "pause it with mode abort or wait first")
            core.sleep()

        self._loop.between_steps(job)

    def wake(self) -> None:
        """Takes all memory again. After sleep at level 2 the weights come with the next `update_weights`."""
        self._loop.between_steps(lambda core: core.wake())

    def update_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes a full set of weights by Hugging Face name; tokens drawn afterwards carry `version`.

        Each tensor is taken as it comes and needed no longer then. A sleeping engine takes back the memory of its
        weights and not yet that of its cache. Rows that run meanwhile go on with the new weights, their cache computed
        anew; the prefix cache starts empty.

        Raises:
            KeyError: an unknown name came or a weight is missing.
            ValueError: a tensor has the wrong shape. After either the engine has no weights.
        """
        checked = self._checked(stream)
        self._loop.between_steps(lambda core: core.update_weights(checked, version))

    def load_adapter(self, folder: str, version: int) -> None:
        """Takes a new PEFT adapter from a folder; tokens of requests that come afterwards carry `version`.

        Raises:
            RunError: the engine was made without an adapter, or generates.
        """
        if self.options.lora is None:
            raise RunError(f"this {self._name} engine serves no adapter", "make it with lora=FOLDER")

        def job(core: C) -> None:
            if self._loop.generating:
                what = f"an adapter cannot change while the {self._name} engine generates"
                raise RunError(what, "pause it with mode wait")
            core.load_adapter(folder, version)

        self._loop.between_steps(job)

    def close(self) -> None:
        self._loop.close()

    def _checked(self, stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The stream, refused where it is not what `update_weights` takes."""
        return self._names.checked(stream)

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
