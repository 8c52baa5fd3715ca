"""SglangEngine: the RolloutEngine on SGLang."""

from __future__ import annotations

from verl_core.rollout.sglang.core import SglangCore
from verl_core.rollout.sglang.options import SglangOptions, server_words
from verl_core.rollout.sglang.sampling import check_temperature
from verl_core.rollout.sglang.server import Server
from verl_core.rollout.stepped import SteppedEngine


class SglangEngine(SteppedEngine[SglangCore]):
    """Made by `verl_core.rollout.sglang.make`, in the main thread. SGLang tells of tokens 16 at a time; `sleep` gives
    back its CUDA graphs too.

    Args:
        memory_share: as `options.server_words` takes it.
    """

    def __init__(self, options: SglangOptions, memory_share: float | None):
        self._server = Server(server_words(options, memory_share))
        super().__init__("sglang", options, lambda: SglangCore(options, self._server), check_temperature)

    def health(self) -> None:
        """Raises RunError when the engine or one of its schedulers has failed. One that hangs ends by itself, after
        SGLang's own `watchdog_timeout` (300 s)."""
        self._server.check()
        self._loop.health()

    def capacity_tokens(self) -> int:
        """Tokens the cache has room for."""
        return self._server.capacity_tokens()
