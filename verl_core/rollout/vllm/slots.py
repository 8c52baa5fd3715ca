"""A running row's next token in the block that it has, without asking vLLM's cache manager.

With full attention a row needs a new block only once in a block's length, but vLLM works it all out for every row at
every step: a quarter of what a step costs the host, which bounds small models.
"""

from __future__ import annotations

from typing import Any

CACHES = 2  # tokens behind a full block within which vLLM registers it as a prefix: it may know its tokens a step late


def full_attention(scheduler: Any) -> bool:
    """Whether all layers keep all tokens of a row in caches of one kind, and nothing else reads these."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = scheduler.kv_cache_manager.kv_cache_config.kv_cache_groups
    return len(groups) == 1 and type(groups[0].kv_cache_spec) is FullAttentionSpec and scheduler.connector is None


def take_free_slots(scheduler: Any) -> bool:
    """Gives the scheduler a shorter way where one token fits; False, and nothing is changed, for models whose layers
    drop blocks while a row runs (windows, state-space layers) or whose layers have caches of several kinds."""
    if not full_attention(scheduler):
        return False
    manager = scheduler.kv_cache_manager
    (blocks,) = manager.coordinator.single_type_managers
    held, size, whole, none = (
        blocks.req_to_blocks,
        blocks.block_size,
        manager.allocate_slots,
        manager.empty_kv_cache_blocks,
    )

    def allocate_slots(request: Any, num_new_tokens: int, num_lookahead_tokens: int = 0, **more: Any) -> Any:
        """`more` is what is asked for a row that does not run yet."""
        if num_new_tokens == 1 and not num_lookahead_tokens and not more:
            length = request.num_computed_tokens + 1
            if length % size > CACHES and length <= len(held[request.request_id]) * size:
                return none
        return whole(request, num_new_tokens, num_lookahead_tokens=num_lookahead_tokens, **more)

    manager.allocate_slots = allocate_slots
    return True
