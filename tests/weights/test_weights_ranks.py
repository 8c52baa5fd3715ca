"""A trainer of two FSDP2 ranks sends what its shards make together, and no rank holds more than it has to."""

import pytest
from transformers import Qwen2Config

from tests.training.training_ranks import running, write
from tests.weights.weights_ranks import push


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("model"), Qwen2Config, tie_word_embeddings=True, num_key_value_heads=2)
    with running(2) as call:
        yield lambda kind: call(push, [True, False], folder, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "broadcast"])
def test_the_engine_holds_what_two_ranks_have_together(ranks, kind):
    one, two = ranks(kind)
    assert one["held"] == one["want"] == two["want"]
    whole = max(size for size, _ in one["sizes"].values())
    model = sum(size for size, _ in one["sizes"].values())
    if kind == "broadcast":
        assert whole <= one["largest"] < model / 2  # a tensor at a time
        return
    for rank in (one, two):
        shard = max(size for _, size in rank["sizes"].values())
        assert rank["largest"] <= shard + 512 < whole
        first, second = rank["sent"]
        assert (first.whole, second.whole) == (True, False)
        assert second.bytes < first.bytes / 2
        assert second.changed == pytest.approx(second.elements / 10, rel=0.05)
    assert 4 * (one["sent"][1].elements + two["sent"][1].elements) == model
