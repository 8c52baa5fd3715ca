"""Run by the environment's python: vLLM's schedulers by the short way and by their own, step by step beside each other,
with a runner that only draws numbers; so that the asynchronous one, which needs a GPU otherwise, is compared here too.
Prints a JSON list of how many steps went the short way and how many rows were interrupted.

python vllm_lockstep.py FOLDER
"""

from __future__ import annotations

import json
import random
import sys
from collections import deque
from typing import Any
from zlib import crc32

import numpy as np
import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from verl_core.rollout.vllm.slots import take_free_slots
from verl_core.rollout.vllm.steady import Steady, take_steady_steps

BLOCK, BLOCKS, LENGTH, SEQUENCES, BUDGET = 16, 20, 200, 6, 64
ENDS, VOCABULARY, ROWS = frozenset(range(2)), 100, 60


class Side:
    """A scheduler and the steps that are under way, as vLLM's engine core drives them."""

    def __init__(self, config: Any, kind: type[Scheduler], current_runner: bool, short: bool):
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32)
        self.scheduler = kind(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        self.scheduler.use_v2_model_runner = current_runner
        self.ahead = kind is AsyncScheduler
        self.queue: deque[tuple[Any, dict[str, int | None]]] = deque()
        self.drawn: dict[str, list[tuple[int, float]]] = {}
        self.ended: list[str] = []
        if short:
            assert take_free_slots(self.scheduler) and take_steady_steps(self.scheduler, self.push)

    def add(self, request: Request) -> None:
        self.drawn[request.request_id] = []
        self.scheduler.add_request(request)

    def push(self, key: str, token: int, logp: float) -> None:
        self.drawn[key].append((token, logp))
        if token in ENDS or len(self.drawn[key]) == self.scheduler.requests[key].max_tokens:
            self.ended.append(key)

    def drop(self, key: str) -> None:
        self.scheduler.finish_requests([key], RequestStatus.FINISHED_ABORTED)

    def step(self) -> Any:
        """What was told to the runner; None where nothing was."""
        told = None
        if self.scheduler.has_requests():
            told = self.scheduler.schedule()
            self.queue.appendleft((told, self.tokens(told)))
            if self.ahead and len(self.queue) < 2 and self.scheduler.has_requests():
                return told
        if self.queue:
            self.collect()
        return told

    def settle(self) -> None:
        self.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        while self.queue:
            self.step()
        self.scheduler.set_pause_state(PauseState.UNPAUSED)

    def tokens(self, told: Any) -> dict[str, int | None]:
        """A token a row that depends on its place alone; None in the middle of a prompt."""
        found: dict[str, int | None] = {}
        for key in told.num_scheduled_tokens:
            row = self.scheduler.requests[key]
            draw = crc32(f"{key} {row.num_computed_tokens}".encode()) % VOCABULARY
            found[key] = None if row.is_prefill_chunk else draw
        return found

    def collect(self) -> None:
        told, tokens = self.queue.pop()
        keys = list(tokens)[::-1]  # a runner has an order of its own
        ids = np.array([[tokens[key] or 0] for key in keys]).reshape(-1, 1)
        output = ModelRunnerOutput(
            req_ids=keys,
            req_id_to_index={key: i for i, key in enumerate(keys)},
            sampled_token_ids=[[] if tokens[key] is None else [tokens[key]] for key in keys],
            logprobs=LogprobsLists(ids, -ids / 8, ids[:, 0]),
        )
        for group in self.scheduler.update_from_output(told, output).values():
            for one in group.outputs:
                new = one.new_logprobs.logprobs[:, 0].tolist()
                self.drawn[one.request_id] += zip(one.new_token_ids, new, strict=True)
        ended, self.ended = self.ended, []
        for key in ended:
            self.drop(key)

    def state(self) -> dict[str, Any]:
        """All that a later step can depend on."""
        s = self.scheduler
        (blocks,) = s.kv_cache_manager.coordinator.single_type_managers
        pool = s.kv_cache_manager.block_pool
        rows = {
            key: (
                row.status, row.num_computed_tokens, row.num_output_placeholders, row.num_in_flight_tokens,
                row.is_prefill_chunk, row.async_tokens_to_discard, row.num_preemptions, list(row.all_token_ids),
                list(row.output_token_ids), list(row.block_hashes),
                [block.block_id for block in blocks.req_to_blocks.get(key, ())],
                blocks.num_cached_block.get(key),
            )
            for key, row in s.requests.items()
        }  # fmt: skip
        return {
            "rows": rows,
            "drawn": self.drawn,
            "running": [row.request_id for row in s.running],
            "waiting": [row.request_id for row in s.waiting],
            "skipped": [row.request_id for row in s.skipped_waiting],
            "finished": s.finished_req_ids,
            "interrupted": s.reset_preempted_req_ids,
            "before": s.prev_step_scheduled_req_ids,
            "step": s.current_step,
            "prefilling": {row.request_id for row in s._inflight_prefills},
            "free": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
            "blocks": [(block.ref_cnt, block.block_hash) for block in pool.blocks],
        }


def same(what: str, short: Any, own: Any) -> None:
    if short != own and isinstance(short, dict):
        short, own = ({k: v for k, v in a.items() if k not in b or b[k] != v} for a, b in ((short, own), (own, short)))
    assert short == own, f"{what}\nby the short way {short}\nby its own     {own}"


def requests(draw: random.Random, hasher: Any) -> list[tuple[int, tuple[Request, Request]]]:
    """With the step at which they come; a pair of each, one a side. Some share a prompt, some are longer than a
    step's budget, some end by length alone and some reach the model's."""
    made = []
    for i in range(ROWS):
        kept = random.Random(i // 3)
        ids = [kept.randrange(VOCABULARY) for _ in range(kept.choice((1, 15, 16, 17, 33, 100, 150)))]
        most = min(draw.choice((1, 2, 20, 60, LENGTH)), LENGTH - len(ids))
        rule = SamplingParams(max_tokens=most, stop_token_ids=sorted(ENDS), ignore_eos=True, logprobs=0)
        pair = [Request(str(i), list(ids), rule, None, block_hasher=hasher) for _ in range(2)]
        made.append((draw.randrange(400), (pair[0], pair[1])))
    return sorted(made, key=lambda one: one[0])


def compare(config: Any, kind: type[Scheduler], current_runner: bool, hasher: Any) -> None:
    short, own = (Side(config, kind, current_runner, way) for way in (True, False))
    draw = random.Random(7)
    coming, now = requests(draw, hasher), 0
    while coming or own.scheduler.requests or own.queue:
        while coming and coming[0][0] <= now:
            for side, request in zip((short, own), coming.pop(0)[1], strict=True):
                side.add(request)
        if now % 23 == 5 and own.scheduler.requests:  # a row is dropped with a step under way
            key = draw.choice(sorted(own.scheduler.requests))
            short.drop(key), own.drop(key)
        if now % 83 == 11:  # new weights
            for side in (short, own):
                side.settle()
                side.scheduler.reset_prefix_cache(reset_running_requests=True)
        elif now % 83 == 52:  # and as vLLM itself does it, with a step under way
            for side in (short, own):
                side.scheduler.reset_prefix_cache(reset_running_requests=True)
        told = [side.step() for side in (short, own)]
        assert (told[0] is None) == (told[1] is None)
        if told[0] is not None:
            same(f"told in step {now}", *(vars(one) for one in told))
        same(f"after step {now}", short.state(), own.state())
        now += 1
        assert now < 20_000, "it does not end"


def main(folder: str) -> None:
    config = EngineArgs(
        model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=LENGTH, max_num_seqs=SEQUENCES,
        max_num_batched_tokens=BUDGET, enable_prefix_caching=True, enforce_eager=True,
    ).create_engine_config()  # fmt: skip
    config.cache_config.block_size, config.cache_config.num_gpu_blocks = BLOCK, BLOCKS
    hashes = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(hashes)
    hasher = get_request_block_hasher(BLOCK, hashes)
    told, interrupted = [], []
    whole, preempt = Steady._told, Scheduler._preempt_request
    Steady._told = lambda self, rows: told.append(1) or whole(self, rows)

    def counted(self: Scheduler, row: Request, *more: Any) -> None:
        if sys._getframe(1).f_code.co_name == "schedule":  # for want of blocks
            interrupted.append(1)
        preempt(self, row, *more)

    Scheduler._preempt_request = counted
    counts = []
    for kind, current_runner in ((Scheduler, False), (AsyncScheduler, True), (AsyncScheduler, False)):
        told.clear(), interrupted.clear()
        compare(config, kind, current_runner, hasher)
        counts.append([len(told), len(interrupted)])
    print(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1])
