"""`model.use_liger` on a GPU. It changes classes of transformers for a whole process, so each engine has its own."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.training.training_tiny import NllEntropy, make_batch, make_engine, totals, write_model
from verl_core.config.schema import FsdpConfig
from verl_core.platforms import current

pytestmark = pytest.mark.gpu
FLOAT32 = FsdpConfig(dtype="float32", use_torch_compile=False)


def trained(folder: Path, use_liger: bool) -> tuple[list[float], set[str]]:
    """Losses of three steps in float32, and the packages that compute the layers' norms and feed-forwards."""
    engine = make_engine(folder, model={"use_liger": use_liger}, platform=current("cuda"), fsdp=FLOAT32)
    batch = make_batch()
    losses = [engine.step(batch, NllEntropy(), totals(batch))["actor/loss"] for _ in range(3)]
    layer = engine.model.model.layers[0]
    return losses, {m.forward.__func__.__module__.partition(".")[0] for m in (layer.input_layernorm, layer.mlp)}


def test_losses_are_those_of_transformers_own_modules(tmp_path):
    folder, spawn = write_model(tmp_path), multiprocessing.get_context("spawn")
    found = []
    for use_liger in (False, True):
        with ProcessPoolExecutor(1, spawn) as process:
            found.append(process.submit(trained, folder, use_liger).result(timeout=300))
    (want, plain), (got, liger) = found
    assert plain == {"transformers"} and liger == {"liger_kernel"}
    assert got == pytest.approx(want, rel=1e-4)
