"""When gradients are reduced matters only where ranks share a copy of the parameters."""

import pytest

from verl_core.config.compose import resolve
from verl_core.config.effective import ranks_per_sequence
from verl_core.config.errors import UserError

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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tensor_parallel_size=3"], "does not divide the 8 ranks that share a copy of the parameters"),
        (["expert_parallel_size=4", "fsdp_size=2"], "does not divide the 2 ranks that share a copy of the parameters"),
        (["tensor_parallel_size=2", "expert_parallel_size=2"], "expert_parallel_size=2 .*do not go together"),
        (["tensor_parallel_size=2", "model.lora_rank=8"], "lora_rank=8 .*do not go together"),
        (["expert_parallel_size=2", "model.enable_activation_offload=true"], "offload=true .*do not go together"),
        (["tensor_parallel_size=2", "actor.ulysses_sequence_parallel_size=2"], "ulysses.*do not go together"),
    ],
)
def test_parts_of_layers_and_experts_are_checked_with_their_numbers(words, says):
    given = [word if "." in word else f"actor.fsdp_config.{word}" for word in words]
    with pytest.raises(UserError, match=says):
        resolve("gsm8k-grpo", ["cluster.n_gpus_per_node=8", *given])


def test_ranks_with_parts_take_the_same_sequences():
    words = ["cluster.n_gpus_per_node=8", "actor.fsdp_config.tensor_parallel_size=4"]
    assert ranks_per_sequence(resolve("gsm8k-grpo", words).config.actor) == 4
