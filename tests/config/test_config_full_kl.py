"""The KL over the whole vocabulary in a configuration: where it runs, and which keys it leaves without effect."""

import pytest

from verl_core.config.compose import resolve
from verl_core.config.effective import effective, kl_terms
from verl_core.config.errors import UserError
from verl_core.config.unbuilt import unbuilt

LOSS = ["actor.use_kl_loss=true", "actor.kl_loss_type=full"]
REWARD = ["algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=full"]
APART = ["cluster.executor=ray", "cluster.pools={main: {gpus: 1}, other: {gpus: 1}}", "ref.pool=other"]


@pytest.mark.parametrize("words", [LOSS, REWARD])
def test_it_runs_where_the_reference_is_beside_the_actor(words):
    key = words[1].partition("=")[0]
    config = effective(resolve("smoke", words).config)
    assert not list(unbuilt(config)) and kl_terms(config) == {key: "full"}
    with pytest.raises(UserError, match=f"{key}=.full. .command line. needs the reference on the actor"):
        resolve("smoke", [*words, *APART])
    estimate = [word.replace("full", "k3") for word in words]
    assert kl_terms(effective(resolve("smoke", [*estimate, *APART]).config)) == {key: "k3"}


def test_the_references_micro_batches_are_the_actors():
    micro = ["ref.log_prob_micro_batch_size_per_gpu=4"]
    (warning,) = resolve("smoke", [*LOSS, *micro]).warnings
    assert warning.startswith("ref.log_prob_micro_batch_size_per_gpu (command line) has no effect")
    beside = ["algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=k1"]
    assert not resolve("smoke", [*LOSS, *beside, *micro]).warnings
