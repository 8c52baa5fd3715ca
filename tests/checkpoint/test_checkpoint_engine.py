"""The real engine through the real store: what a resumed engine computes next is bitwise what the unbroken one does."""

from pathlib import Path

import pytest
import torch
from checkpoint_models import on_ranks, tiny_model
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from verl_core.algorithms.loss import Need, Totals
from verl_core.batch import Batch
from verl_core.checkpoint import CheckpointStore, load_role, save_huggingface_files, save_role, state_bytes
from verl_core.checkpoint.merge import merge, plan_merge
from verl_core.config.schema import ActorConfig, CriticConfig, ModelConfig, OptimConfig
from verl_core.platforms import current
from verl_core.training.fsdp import FsdpEngine
from verl_core.training.protocol import MicroBatching

OPTIM = OptimConfig(lr=1e-2, eps=1e-3)


class Likelihood:
    """Mean of -logp, or of the squared value for a critic."""

    temperature = 1.0

    def __init__(self, need: Need):
        self.needs = frozenset({need})

    def __call__(self, out, batch, totals):
        (value_N,) = out.values()
        value_N = -value_N if Need.LOGP in self.needs else (value_N - 1).square()
        return (value_N * batch["mask_N"]).sum() / totals.tokens, {}


def engine(model: Path, role: str) -> FsdpEngine:
    settings = CriticConfig(optim=OPTIM) if role == "critic" else ActorConfig(optim=OPTIM)
    config = ModelConfig(path=str(model), enable_gradient_checkpointing=False)
    micro = MicroBatching(sequences=4)
    return FsdpEngine(config, settings, role=role, platform=current("cpu"), micro=micro, total_steps=9)


def train(trained: FsdpEngine, steps: int) -> list[dict[str, float]]:
    length_S = torch.tensor([9, 4, 12, 2])
    ids_N = torch.randint(0, 97, (int(length_S.sum()),), generator=torch.Generator().manual_seed(0))
    mask_N = torch.cat([torch.arange(n) > 0 for n in length_S.tolist()])
    batch = Batch(length_S, torch.arange(4), {"ids_N": ids_N, "mask_N": mask_N})
    need = Need.VALUES if trained.role == "critic" else Need.LOGP
    totals = Totals(tokens=int(mask_N.sum()), sequences=4)
    return [trained.step(batch, Likelihood(need), totals) for _ in range(steps)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_model(True).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_resumed_engine_goes_on_bitwise(model, tmp_path, role):
    """Case K17: with the moments of the optimizer."""
    unbroken = engine(model, role)
    train(unbroken, 3)
    state = unbroken.state()
    store = CheckpointStore(tmp_path / "run/checkpoints")
    with store.saving(3, state_bytes(state)) as folder:
        save_role(folder / role, state)
        save_huggingface_files(folder / role, model)
    expected = train(unbroken, 2)

    resumed = engine(model, role)
    resumed.load_state(load_role(store.latest() / role, resumed.state()))
    assert train(resumed, 2) == expected
    after, want = resumed.state(), unbroken.state()
    assert after.scalars == want.scalars
    for got_part, want_part in ((after.weights, want.weights), (after.optimizer, want.optimizer)):
        assert got_part.keys() == want_part.keys()
        assert all(torch.equal(got_part[name], tensor) for name, tensor in want_part.items())


@pytest.mark.parametrize(
    ("role", "auto"), [("actor", AutoModelForCausalLM), ("critic", AutoModelForTokenClassification)]
)
def test_trained_engine_merges(model, tmp_path, role, auto):
    trained = engine(model, role)
    train(trained, 2)
    with CheckpointStore(tmp_path / "run/checkpoints").saving(2) as folder:
        save_role(folder / role, trained.state())
        save_huggingface_files(folder / role, model)
    merge(plan_merge(tmp_path / "run", tmp_path / "out", role=role))
    merged, report = auto.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values())
    weights = merged.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in trained.state().weights.items())


def save_from_two(model: Path, folder: Path) -> None:
    trained = engine(model, "actor")
    train(trained, 2)
    save_role(folder, trained.state())


def test_engine_state_moves_between_one_and_two_ranks(model, tmp_path):
    on_ranks(2, save_from_two, model, tmp_path / "two")
    resumed = engine(model, "actor")
    resumed.load_state(load_role(tmp_path / "two", resumed.state()))
    save_role(tmp_path / "one", resumed.state())
    by_two, by_one = (load_role(tmp_path / count, engine(model, "actor").state()) for count in ("two", "one"))
    assert by_one.scalars == by_two.scalars and by_two.optimizer
    for one_part, two_part in ((by_one.weights, by_two.weights), (by_one.optimizer, by_two.optimizer)):
        assert one_part.keys() == two_part.keys()
        assert all(torch.equal(one_part[name], tensor) for name, tensor in two_part.items())
    on_ranks(2, check_equal_on_two, model, tmp_path / "one", tmp_path / "two")


def check_equal_on_two(model: Path, one: Path, two: Path) -> None:
    left, right = engine(model, "actor"), engine(model, "actor")
    left.load_state(load_role(one, left.state()))
    right.load_state(load_role(two, right.state()))
    assert train(left, 1) == train(right, 1)
