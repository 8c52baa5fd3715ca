"""Teachers' tokens, their log-probs and the KL from the reference on a GPU in bf16 follow float32 on the CPU."""

import pytest
import torch

from tests.training.training_tiny import NllEntropy, make_batch, make_engine, totals, write_model
from tests.training.training_wide import TEMPERATURE, ForwardKl, FullKl, add_teacher
from verl_core.algorithms.loss import Need
from verl_core.config.schema import FsdpConfig
from verl_core.platforms import current
from verl_core.training.protocol import MicroBatching

pytestmark = pytest.mark.gpu
WANTED = frozenset({Need.TOPK_IDS, Need.TOPK_LOGP, Need.GIVEN, Need.FULL_KL, Need.LOGP})
ADAPTER = {"lora_rank": 8, "lora_alpha": 16}


@pytest.mark.parametrize("model", [{}, ADAPTER], ids=["whole", "adapter"])
def test_bf16_follows_float32(tmp_path, model):
    folder, batch = write_model(tmp_path), add_teacher(make_batch())
    on_gpu = {"platform": current("cuda"), "micro": MicroBatching(tokens=16), "checkpointing": True}
    exact = make_engine(folder, model=model)
    half = make_engine(folder, model=model, fsdp=FsdpConfig(use_torch_compile=False), **on_gpu)
    for engine in (exact, half):
        engine.snapshot("ref")
    for loss in (NllEntropy(), ForwardKl(), FullKl()):
        want, got = (engine.step(batch, loss, totals(batch)) for engine in (exact, half))
        assert got["actor/loss"] == pytest.approx(want["actor/loss"], rel=0.05, abs=0.02)
    want, got = (engine.forward(batch, WANTED, TEMPERATURE, k=1) for engine in (exact, half))
    for need in WANTED - {Need.TOPK_IDS}:
        assert got[need].dtype == torch.float32 and got[need].device.type == "cpu"
        torch.testing.assert_close(got[need], want[need], rtol=0.1, atol=0.1)
    given = half.forward(batch.add(teacher_ids_NK=got[Need.TOPK_IDS]), frozenset({Need.GIVEN}), TEMPERATURE)
    torch.testing.assert_close(given[Need.GIVEN], got[Need.TOPK_LOGP], rtol=0, atol=1e-3)
