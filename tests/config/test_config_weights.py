"""Which transports go with which pools, engines and trainers."""

import pytest

from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.unbuilt import unbuilt

APART = ("cluster.pools.train.gpus=2", "cluster.pools.gen.gpus=1", "actor.pool=train", "rollout.pool=gen")


@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_engines_on_a_pool_of_their_own_are_sent_to_by_broadcast_unless_told_otherwise(engine):
    config = effective(resolve("smoke", [*APART, f"rollout.engine={engine}"]).config)
    assert config.weights.type == "broadcast"
    assert list(unbuilt(config)) == []


@pytest.mark.parametrize("words", [("weights.type=delta",), ("weights.type=disk", "weights.folder=/tmp/weights")])
def test_the_other_transports_between_pools_are_taken(words):
    assert list(unbuilt(effective(resolve("smoke", [*APART, *words]).config))) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("weights.type=broadcast",), "serves engines on a pool of their own, .*: inplace serves these"),
        (("rollout.engine=vllm", "weights.type=delta"), "serves engines on a pool of their own, .*: ipc serves these"),
        ((*APART, "weights.type=inplace"), "in one process, .*: broadcast joins pools"),
        ((*APART, "weights.type=disk"), r"weights.folder=null .*needs a folder that all nodes see"),
        ((*APART, "weights.type=delta", "model.lora_rank=4"), "model.lora_rank=4 .*do not go together"),
        (
            (*APART, "weights.type=delta", "actor.fsdp_config.tensor_parallel_size=2"),
            r"actor.fsdp_config.tensor_parallel_size=2 .*do not go together",
        ),
        ((*APART, "actor.use_kl_loss=true", "ref.pool=gen"), "ref.pool='gen' .*share their pool 'gen' with no other"),
        ((*APART, "weights.bucket_mb=0"), r"weights.bucket_mb=0 .*not in \[1, 65536\]"),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_start(words, message):
    with pytest.raises(UserError, match=message):
        resolve("smoke", list(words))


def test_the_reason_of_a_key_without_effect_is_the_transport():
    resolved = resolve("smoke", ["weights.bucket_mb=64", "weights.folder=/tmp/weights"])
    said = "\n".join(resolved.warnings)
    assert "weights.bucket_mb" in said and "weights.folder" in said and "weights.type=disk" in said
