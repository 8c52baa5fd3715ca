"""vLLM's engine core in this process, stepped by a StepLoop.

Neither `LLM` nor `AsyncLLM`: both make Python objects for each token (their output processors collect log-probs and
text), and the asynchronous one sends them through a socket. The scheduler's own output is flat: a list of ids and an
array of log-probs for each row of a step. That is what is read here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verl_core.config.errors import RunError
from verl_core.rollout.rows import Row
from verl_core.rollout.vllm import adapter
from verl_core.rollout.vllm.machine import cache_bytes
from verl_core.rollout.vllm.options import VllmOptions
from verl_core.rollout.vllm.sampled import Sampled
from verl_core.rollout.vllm.sampling import sampling_params
from verl_core.rollout.vllm.slots import take_free_slots
from verl_core.rollout.vllm.steady import take_steady_steps
from verl_core.rollout.vllm.weights import Packer


class VllmCore:
    """Keeps `verl_core.rollout.stepping.Stepper`; used from one thread. Importing vLLM and making it takes 7 s to a
    minute."""

    def __init__(self, options: VllmOptions):
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor import Executor

        config = EngineArgs(**engine_words(options)).create_engine_config()
        self.version = 0
        self.has_weights = options.load_format == "auto" and options.lora_config is None
        self._options = options
        self._eos_ids = frozenset(options.eos_ids)
        self._rows: dict[str, Row] = {}
        self._adapter: Any = None
        self._asleep = set[str]()  # parts of the memory: weights, kv_cache
        self._core = EngineCore(config, Executor.get_class(config), log_stats=False)
        self._ended = list[str]()  # rows that ended in the step under way
        take_free_slots(self._core.scheduler)
        steady = take_steady_steps(self._core.scheduler, self._push)
        self._sampled = None if steady else Sampled(self._core.scheduler)
        self._on_cpu = config.device_config.device_type == "cpu"
        if not self._on_cpu:
            self._core.model_executor.collective_rpc("take_over_logps")
        if options.lora is not None:
            self.load_adapter(options.lora, version=0)

    def add(self, key: str, row: Row) -> None:
        """Takes a row in. Raises RunError while there are no weights or the engine is asleep."""
        from vllm.v1.engine import EngineCoreRequest

        if not self.has_weights:
            raise RunError("the vllm engine has no weights", "call update_weights before generate")
        if self._asleep:
            raise RunError("the vllm engine is asleep", "call wake before generate")
        request = EngineCoreRequest(
            request_id=key,
            prompt_token_ids=list(row.request.ids),
            mm_features=None,
            sampling_params=sampling_params(row, self._eos_ids),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=self._adapter,
            cache_salt=None,
            data_parallel_rank=None,
        )
        self._core.add_request(*self._core.preprocess_add_request(request))
        self._rows[key] = row

    def drop(self, keys: Iterable[str]) -> None:
        gone = [key for key in keys if self._rows.pop(key, None) is not None]
        if gone:
            self._core.abort_requests(gone)

    def step(self) -> list[str]:
        """Raises RunError where an update has failed under rows that run: parts of two versions draw no token."""
        if not self.has_weights:
            raise RunError("an update of the vllm engine's weights failed while rows ran", "start the engine again")
        outputs, executed = self._core.step_fn()
        self._core.post_step(executed)
        if self._sampled is not None:
            self._take(outputs, self._sampled)
        ended, self._ended = self._ended, []
        self.drop(ended)  # vLLM may not know: it looks for no stop string and no NaN, and in steady steps for nothing
        return ended

    def settle(self) -> list[str]:
        """Collects the step that runs ahead on the GPU (asynchronous scheduling), so that all tokens drawn so far are
        in their rows: what is done next to weights or cache concerns the next token."""
        from vllm.v1.core.sched.interface import PauseState

        if not self._core.batch_queue:
            return []
        ended = list[str]()
        self._core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        while self._core.batch_queue:
            ended += self.step()
        self._core.scheduler.set_pause_state(PauseState.UNPAUSED)
        return ended

    def update_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Writes a full set of weights, already checked by name, into the model; with lora_config, the adapter's.

        Rows that run are computed again from their tokens with the new weights: every later log-prob is the new
        weights' own. After an error the engine has no weights.
        """
        if self._options.lora is not None:
            raise RunError("this engine serves an adapter over fixed weights", "call load_adapter")
        if "weights" in self._asleep:
            self._wake("weights")
        self.has_weights = False
        if self._options.lora_config is not None:
            self._write_adapter(stream, self._options.lora_config)
        else:
            self._write(stream)
        self._forget_cache()
        self.version, self.has_weights = version, True

    def _write(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        rpc, packer = self._core.model_executor.collective_rpc, Packer()
        rpc("begin_weights")
        try:
            if self._options.tensor_parallel_size == 1:
                rpc("take_weights", args=(stream,))
            else:
                for bucket in packer.buckets(stream):
                    rpc("take_packed", args=(bucket,))
        finally:
            missing = rpc("end_weights")
        if any(missing):
            raise KeyError(f"vllm's model got no value for {next(names for names in missing if names)[0]!r}")

    def _write_adapter(self, stream: Iterable[tuple[str, Tensor]], config: dict[str, Any]) -> None:
        from vllm.lora.request import LoRARequest

        rpc, packer, whole = self._core.model_executor.collective_rpc, Packer(), False
        rpc("begin_adapter")
        try:
            if self._options.tensor_parallel_size == 1:
                rpc("collect_adapter", args=(stream,))
            else:
                for bucket in packer.buckets(stream):
                    rpc("collect_packed_adapter", args=(bucket,))
            whole = True
        finally:
            rpc("end_adapter", args=(config if whole else None,))
        # Workers find it by its number and never look for the folder.
        self._adapter = LoRARequest(adapter.NAME, adapter.NUMBER, "in memory")

    def load_adapter(self, folder: str, version: int) -> None:
        """Takes a PEFT adapter from a folder in place of the present one; tokens drawn afterwards carry `version`."""
        from vllm.lora.request import LoRARequest

        old = self._adapter
        number = 1 if old is None else old.lora_int_id + 1
        new = LoRARequest(f"{Path(folder).name}-{number}", number, folder)
        self._core.add_lora(new)
        if old is not None:
            self._core.remove_lora(old.lora_int_id)
        self._adapter, self.version = new, version

    def sleep(self) -> None:
        if self._asleep:
            return
        self._forget_cache()
        if self._on_cpu:
            self._core.model_executor.collective_rpc("free_cpu_cache")
            self._asleep = {"kv_cache"}
        else:
            level = self._options.sleep_level
            self._core.sleep(level)
            self.has_weights = self.has_weights and level == 1
            self._asleep = {"kv_cache", "weights"}

    def wake(self) -> None:
        for part in ("weights", "kv_cache"):
            if part in self._asleep:
                self._wake(part)

    def _wake(self, part: str) -> None:
        if self._on_cpu:
            self._core.model_executor.collective_rpc("take_cpu_cache")
        else:
            self._core.wake_up([part])
        self._asleep.remove(part)

    def close(self) -> None:
        self._core.shutdown()

    @property
    def broken(self) -> bool:
        """Whether one of several workers has died, which ends the others."""
        return getattr(self._core.model_executor, "is_failed", False)

    def capacity_tokens(self) -> int:
        """Tokens the cache has room for."""
        return self._core.vllm_config.cache_config.kv_cache_size_tokens or 0

    def _forget_cache(self) -> None:
        self._core.reset_prefix_cache(reset_running_requests=True)

    def _push(self, key: str, token: int, logp: float) -> None:
        row = self._rows.get(key)
        if row is None:  # it ended here while its next token was on the way
            return
        row.push(token, logp, self.version, self._eos_ids)
        if row.finish is not None:
            self._ended.append(key)

    def _take(self, outputs: dict[int, Any] | None, sampled: Sampled) -> None:
        for output in (one for group in (outputs or {}).values() for one in group.outputs):
            key = output.request_id
            for token in output.new_token_ids:
                self._push(key, token, sampled.logp(key))
            row = self._rows.get(key)
            if row is not None and row.finish is None and output.finish_reason is not None:
                raise RunError(f"vllm ended request {row.request.request_id!r} with {output.finish_reason}")


def engine_words(options: VllmOptions) -> dict[str, Any]:
    """vLLM's own arguments."""
    words: dict[str, Any] = {
        "model": options.model,
        "skip_tokenizer_init": True,
        "dtype": options.dtype,
        "seed": options.seed,
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        # no less than a token of each sequence, which vLLM refuses, and no more than there can be
        "max_num_batched_tokens": max(
            min(options.max_num_batched_tokens, options.max_num_seqs * options.max_model_len), options.max_num_seqs
        ),
        "tensor_parallel_size": options.tensor_parallel_size,
        # Ray, where this process's parent runs under it, would be asked for the workers otherwise.
        "distributed_executor_backend": "mp" if options.tensor_parallel_size > 1 else "uni",
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "kv_cache_memory_bytes": cache_bytes(options),
        "load_format": options.load_format,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",  # after temperature, top-k and top-p: what was drawn from
        "generation_config": "vllm",  # none of the model folder's sampling defaults
        "worker_extension_cls": "verl_core.rollout.vllm.worker_extension.WorkerExtension",
        "trust_remote_code": options.trust_remote_code,
        "disable_log_stats": True,
    }
    on_gpu = torch.cuda.is_available()
    if options.enforce_eager or not on_gpu:
        words["enforce_eager"] = True
    elif not options.compile:
        sizes = sorted({1, 2, 4, 8, *range(16, options.max_num_seqs + 1, 16), options.max_num_seqs})
        words["compilation_config"] = {
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [size for size in sizes if size <= options.max_num_seqs],
        }
    if on_gpu and options.enable_sleep:
        words["enable_sleep_mode"] = True
    if options.has_adapter:
        words |= {"enable_lora": True, "max_lora_rank": _lora_room(options.max_lora_rank or options.lora_rank())}
    return words


def _lora_room(rank: int) -> int:
    """The smallest of the ranks that vLLM has room for."""
    return next((room for room in (1, 8, 16, 32, 64, 128, 256, 320, 512) if room >= rank), rank)
