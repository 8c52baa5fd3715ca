"""Two ranks give teachers' tokens, their log-probs and the KL from the reference as one does, and take the same step:
with sequences of their own, with halves of all rows, and with parts of every layer."""

import pytest
import torch

from tests.models.models_tiny import write_model
from tests.training.test_training_shared_prompt import make_groups
from tests.training.training_ranks import running
from tests.training.training_wide import ForwardKl, FullKl, add_teacher, train_beside_reference
from verl_core.algorithms.loss import Need
from verl_core.training.protocol import MicroBatching

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_ranks():
    with running(2) as call:
        yield call


@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
@pytest.mark.parametrize("loss", [ForwardKl(), FullKl()], ids=["given", "kl"])
@pytest.mark.parametrize(
    ("shares", "options"),
    [
        ([[0, 2, 3, 5, 6], [1, 4]], {"micro": MicroBatching(sequences=1)}),  # five against two
        ([[0, 1, 2, 3, 4, 5, 6], []], {}),
        ([[0, 1, 2, 3, 4, 5, 6]] * 2, {"split": 2, "share_prompt": True, "micro": MicroBatching(tokens=24)}),
        ([[0, 1, 2, 3, 4, 5, 6]] * 2, {"tensor_parallel_size": 2, "checkpointing": True}),
    ],
    ids=["uneven", "empty", "ulysses", "tensor"],
)
def test_two_ranks_equal_one(two_ranks, tmp_path, name, loss, shares, options):
    folder, batch = write_model(tmp_path, name), add_teacher(make_groups())
    want = train_beside_reference(list(range(batch.S)), batch, folder, loss, {})
    for share, got in zip(shares, two_ranks(train_beside_reference, shares, batch, folder, loss, options), strict=True):
        assert got["metrics"] == pytest.approx(want["metrics"], rel=1e-4)
        for moment, value in want["moments"].items():
            scale = float(value.abs().max())
            torch.testing.assert_close(got["moments"][moment], value, rtol=0, atol=1e-4 * scale, msg=moment)
        place_N = batch.token_index(torch.tensor(share, dtype=torch.int64))
        for need, value_N in got["out"].items():
            exact = need is Need.TOPK_IDS
            torch.testing.assert_close(value_N, want["out"][need][place_N], rtol=0, atol=0 if exact else 1e-3)
