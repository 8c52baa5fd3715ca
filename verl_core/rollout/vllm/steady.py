"""A step of rows that all draw one token, told to vLLM's workers in a few operations a row.

What vLLM's scheduler does for a row (requests of every kind, blocks of every kind, an output object each) takes a small
model's host longer than the GPU has work: 0.81 of bare vLLM's tokens/s with it, 1.80 without
(tests/benchmarks/gpu_rollout.py 0.5B). The way here leaves the scheduler's own state exactly as its own way would, so
that each step may go either way: its own whenever rows wait for admission, prompts are not computed yet or blocks run
short.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verl_core.rollout.vllm.slots import full_attention

Push = Callable[[str, int, float], None]  # a request's id, its next token and that token's log-prob


def take_steady_steps(scheduler: Any, push: Push) -> bool:
    """Gives the scheduler the short way and hands every drawn token to `push`; False, and nothing is changed, where
    something is in use that the short way does not know. vLLM then makes no outputs and ends no row by itself: whoever
    is given the tokens aborts rows that have enough."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    unknown = (
        type(scheduler) not in (Scheduler, AsyncScheduler)
        or not full_attention(scheduler)
        or scheduler.num_spec_tokens
        or scheduler.num_sampled_tokens_per_step != 1
        or scheduler.use_pp
        or scheduler.defer_block_free
        or scheduler.ec_connector is not None
        or scheduler.is_encoder_decoder
        or scheduler.enable_return_routed_experts
        or scheduler.needs_kv_cache_zeroing
        or scheduler.log_stats
    )
    if unknown:
        return False
    steady = Steady(scheduler, push, runs_ahead=type(scheduler) is AsyncScheduler)
    scheduler.schedule, scheduler.update_from_output = steady.schedule, steady.update
    return True


class Steady:
    """The two halves of a step, in the place of vLLM's `schedule` and `update_from_output`.

    runs_ahead: a step is scheduled before the last one's tokens are known; placeholders stand for them.
    """

    def __init__(self, scheduler: Any, push: Push, runs_ahead: bool):
        from vllm.v1.core.sched.interface import PauseState
        from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
        from vllm.v1.request import RequestStatus

        self.scheduler, self.push, self.ahead = scheduler, push, int(runs_ahead)
        self.manager = scheduler.kv_cache_manager
        (blocks,) = self.manager.coordinator.single_type_managers
        self.held, self.size = blocks.req_to_blocks, blocks.block_size
        self.whole = scheduler.schedule
        self.unpaused, self.running = PauseState.UNPAUSED, RequestStatus.RUNNING
        self.cached, self.output = CachedRequestData, SchedulerOutput

    def schedule(self, throttle_prefills: bool = False) -> Any:
        rows = None if throttle_prefills else self._rows()
        return self._told(rows) if rows else self.whole(throttle_prefills)

    def _rows(self) -> list[Any] | None:
        """The requests that draw their next token in this step; None: this step is not one of single tokens."""
        s, held, size = self.scheduler, self.held, self.size
        waiting = (s.waiting or s.skipped_waiting) and len(s.running) < s.max_num_running_reqs
        if waiting or s._pause_state is not self.unpaused or len(s.running) > s.max_num_scheduled_tokens:
            return None
        rows, short, last = [], 0, s.max_model_len - 1
        for row in s.running:
            computed, drawing = row.num_computed_tokens, row.num_output_placeholders
            if drawing and computed + 2 - drawing >= row.num_prompt_tokens + row.max_tokens:
                continue  # the token under way is its last
            if computed >= last:
                continue
            if row.is_prefill_chunk or len(row._all_token_ids) + drawing - computed != 1:
                return None
            short += computed >= len(held[row.request_id]) * size
            rows.append(row)
        return rows if short <= self.manager.block_pool.get_num_free_blocks() else None

    def _told(self, rows: list[Any]) -> Any:
        """vLLM's own description of the step, and its count of what is under way."""
        s, manager, ahead = self.scheduler, self.manager, self.ahead
        s.current_step += 1
        manager.new_step_starts()
        ids, blocks, computed, drawn = [], [], [], []
        for row in rows:
            new = manager.allocate_slots(row, 1)
            assert new is not None, "vllm's cache had fewer blocks than it counted"
            ids.append(row.request_id)
            blocks.append(new.get_block_ids(allow_none=True))
            computed.append(row.num_computed_tokens)
            drawn.append(len(row._output_token_ids) + row.num_output_placeholders)
            row.num_computed_tokens += 1
            row.num_in_flight_tokens += 1
            row.num_output_placeholders += ahead
        cached = self.cached(
            req_ids=ids,
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids=self._new_to_the_runner(rows),
            new_block_ids=blocks,
            num_computed_tokens=computed,
            num_output_tokens=drawn,
        )
        told = self.output(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=dict.fromkeys(ids, 1),
            total_num_scheduled_tokens=len(ids),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=manager.get_num_common_prefix_blocks(s.running[0].request_id),
            preempted_req_ids=s.reset_preempted_req_ids,
            finished_req_ids=s.finished_req_ids,
            free_encoder_mm_hashes=[],
            new_block_ids_to_zero=s._get_new_block_ids_to_zero(),
        )
        s.finished_req_ids, s.reset_preempted_req_ids = set(), set()
        return told

    def _new_to_the_runner(self, rows: list[Any]) -> dict[str, list[int]]:
        """Tokens of rows that sat out the last step, which the older model runner wants."""
        s = self.scheduler
        if s.use_v2_model_runner:
            return {}
        before = s.prev_step_scheduled_req_ids
        new = {row.request_id: row._all_token_ids.copy() for row in rows if row.request_id not in before}
        before.clear()
        before.update(row.request_id for row in rows)
        return new

    def update(self, scheduled: Any, drawn: Any) -> dict[int, Any]:
        """Writes down what was drawn, be the step of either way. Rows that ended meanwhile lose their token."""
        s, push, ahead, size, running = self.scheduler, self.push, self.ahead, self.size, self.running
        requests, index, tokens, hashed = s.requests, drawn.req_id_to_index, drawn.sampled_token_ids, s.hash_block_size
        logps = drawn.logprobs.logprobs[:, 0].tolist() if drawn.logprobs is not None else []
        for key, count in scheduled.num_scheduled_tokens.items():
            row = requests.get(key)
            if row is None:
                continue
            row.num_in_flight_tokens -= count
            at = index[key]
            if (row.status > running and row.is_finished()) or not tokens or not tokens[at]:
                continue
            if row.async_tokens_to_discard > 0:  # of weights that were replaced under it
                row.async_tokens_to_discard -= 1
                continue
            (token,) = tokens[at]
            row._output_token_ids.append(token)
            row._all_token_ids.append(token)
            if len(row._all_token_ids) % hashed == 0:
                row.update_block_hashes()
            if ahead:
                row.num_output_placeholders -= 1
                known = row.num_computed_tokens - row.num_output_placeholders
                if row.status == running and (count > 1 or known % size == 0):
                    self.manager.cache_blocks(row, known)
            push(key, token, logps[at])
        return {}
