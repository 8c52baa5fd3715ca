"""When gradients are reduced matters only where ranks share a copy of the parameters."""

import pytest

from verl_core.config.compose import resolve

KEY = "actor.fsdp_config.reduce_gradients"


@pytest.mark.parametrize(
    ("words", "idle"),
    [
        (["cluster.nproc=2"], False),
        (["cluster.n_gpus_per_node=2"], False),
        (["cluster.nproc=4", "actor.fsdp_config.fsdp_size=2"], False),
        (["cluster.nproc=4", "actor.fsdp_config.fsdp_size=1"], True),
        ([], True),
    ],
)
def test_a_rank_with_a_whole_copy_does_not_cut_its_gradients(words, idle):
    warnings = resolve("gsm8k-grpo", [*words, f"{KEY}=each"]).warnings
    assert any(KEY in text for text in warnings) == idle
