"""SGLang's own engine: its front end on an event loop in a thread of this process, a scheduler process for each rank.

The front end's sockets are asynchronous; here are the few calls that a thread may make.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from queue import SimpleQueue
from typing import Any

from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.io_struct import (
    FlushCacheReqInput,
    GenerateReqInput,
    LoadLoRAAdapterReqInput,
    ReleaseMemoryOccupationReqInput,
    ResumeMemoryOccupationReqInput,
    UnloadLoRAAdapterReqInput,
    UpdateWeightsFromTensorReqInput,
)
from sglang.srt.utils import MultiprocessingSerializer
from torch import Tensor

from verl_core.config.errors import RunError
from verl_core.rollout.sglang.scheduler import run_scheduler
from verl_core.rollout.sglang.weights import LOADER

_LOOK_S = 0.5  # between two looks at the schedulers while a call waits
_IDLE_S = 30.0  # for a scheduler to finish what it has under way

News = tuple[str, dict[str, Any] | Exception | None]
"""A request's id and what SGLang says about it: a part, an error, or None at its end."""

_failed = threading.Event()  # a scheduler has died or is about to


def _scheduler_failed(signum: int, frame: Any) -> None:
    """Instead of SGLang's handler, which kills this process before the reason is told."""
    _failed.set()


class _Engine(Engine):
    run_scheduler_process_func = staticmethod(run_scheduler)


class Server:
    """Starts SGLang; takes some 20 s. To be made in the main thread: its schedulers end with the thread that made them.

    Args:
        words: SGLang's arguments (`options.server_words`).
    """

    def __init__(self, words: dict[str, Any]):
        self.news: SimpleQueue[News] = SimpleQueue()
        self._aborted = set[str]()
        self._engine = _Engine(**words, custom_sigquit_handler=_scheduler_failed)
        self._manager = self._engine.tokenizer_manager
        self._loop = self._engine.loop
        self._ranks = words["tp_size"]
        threading.Thread(target=self._loop.run_forever, name="sglang-front", daemon=True).start()

    def capacity_tokens(self) -> int:
        """Tokens the cache has room for."""
        return self._engine._scheduler_init_result.scheduler_infos[0]["max_total_num_tokens"]

    def check(self) -> None:
        """Raises RunError when a scheduler has failed."""
        if _failed.is_set():
            raise RunError("sglang's scheduler has failed", "look at what it printed last")

    def start(self, rid: str, ids: list[int], sampling: dict[str, Any], adapter: str | None) -> None:
        """Begins a request; what comes of it arrives in `news`. No `rid` may begin with another one's."""
        asked = GenerateReqInput(
            rid=rid,
            input_ids=ids,
            sampling_params=sampling,
            return_logprob=True,
            lora_path=adapter,
            stream=True,
        )
        asyncio.run_coroutine_threadsafe(self._follow(rid, asked), self._loop)

    def abort(self, rid: str) -> None:
        """Ends a request as soon as possible; its end still arrives in `news`."""
        self._aborted.add(rid)
        self._loop.call_soon_threadsafe(self._manager.abort_request, rid)

    async def _follow(self, rid: str, asked: GenerateReqInput) -> None:
        end: Exception | None = None
        try:
            if rid not in self._aborted:
                async for part in self._manager.generate_request(asked, None):
                    self.news.put((rid, part))
        except Exception as error:
            end = None if rid in self._aborted else error
        self._aborted.discard(rid)
        self.news.put((rid, end))

    def take_weights(self, bucket: tuple[str, Tensor]) -> None:
        """Writes a bucket of `weights.buckets` into the model of every rank; returns when it is needed no longer."""
        copies = [MultiprocessingSerializer.serialize([bucket]) for _ in range(self._ranks)]
        asked = UpdateWeightsFromTensorReqInput(serialized_named_tensors=copies, load_format=LOADER, flush_cache=False)
        done, why = self._wait(self._manager.update_weights_from_tensor(asked, None))
        if not done:
            raise RunError(f"sglang did not take the weights: {why}")

    def forget_cache(self) -> None:
        """Empties the prefix cache. Nothing may run."""
        answer = self._wait(self._ask(self._manager.flush_cache_communicator, FlushCacheReqInput(timeout_s=_IDLE_S)))
        if not all(one.success for one in answer):
            raise RunError(f"sglang did not empty its cache: {answer[0].message}")

    def release(self, tags: list[str]) -> None:
        self._wait(self._manager.release_memory_occupation(ReleaseMemoryOccupationReqInput(tags=tags), None))

    def take_back(self, tags: list[str]) -> None:
        self._wait(self._manager.resume_memory_occupation(ResumeMemoryOccupationReqInput(tags=tags), None))

    def load_adapter(self, name: str, folder: str) -> None:
        answer = self._wait(self._manager.load_lora_adapter(LoadLoRAAdapterReqInput(lora_name=name, lora_path=folder)))
        if not answer.success:
            raise RunError(f"sglang does not take the adapter {folder}: {answer.error_message}")

    def drop_adapter(self, name: str) -> None:
        self._wait(self._manager.unload_lora_adapter(UnloadLoRAAdapterReqInput(lora_name=name)))

    def close(self) -> None:
        """Ends the schedulers."""
        self._engine.shutdown()

    async def _ask(self, communicator: Any, asked: Any) -> Any:
        self._manager.auto_create_handle_loop()
        return await communicator(asked)

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(_LOOK_S)
            except TimeoutError:
                if future.done():
                    raise
                self.check()
