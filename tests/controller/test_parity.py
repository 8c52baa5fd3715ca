"""The parity gate on a real rank: holds at any temperature, sees what differs, and decides who gives old log-probs."""

import asyncio
from pathlib import Path

import pytest

from tests.controller.controller_tiny import one_rank, tiny_config, tiny_model
from verl_core.config.errors import MachineError
from verl_core.controller.parity import BF16_BOUND, FLOAT32_BOUND, Parity, engine_serves, measure
from verl_core.controller.roles import Role, Rollout
from verl_core.data.dataset import PromptDataset
from verl_core.models.pretrained import load_tokenizer
from verl_core.rollout.client import RolloutClient

FLOAT32, MIXED = ("float32", "float32"), ("float32", "bfloat16")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def gate(config, model: Path, spoil=lambda group: None) -> tuple[Parity, tuple[str, str]]:
    """What the gate measures; `spoil` may change the trainer's weights after the engine has got them."""
    config.data.train_max_samples = 20
    dataset = PromptDataset(config.data.train_files, config.data, load_tokenizer(config.model, model), "train", 0)
    with one_rank(config, model) as group:
        rollout = Rollout(group)

        async def work() -> tuple[Parity, tuple[str, str]]:
            await rollout.push_weights(0)
            spoil(group)
            dtypes = await rollout.dtypes()
            generate = RolloutClient(rollout.generate).generate
            return await measure(config, dataset, generate, Role("actor", group), dtypes), dtypes

        return asyncio.run(work())


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_engine_and_trainer_agree_at_every_temperature(model: Path, temperature: float):
    """Case O4: both sides speak of the distribution that was sampled from."""
    measured, dtypes = gate(tiny_config("smoke", f"rollout.temperature={temperature}"), model)
    assert measured.holds and measured.mean < 1e-5 and dtypes == FLOAT32 and measured.bound == FLOAT32_BOUND


def test_an_engine_of_another_dtype_has_the_wider_bound(model: Path):
    measured, dtypes = gate(tiny_config("smoke", "rollout.dtype=bfloat16"), model)
    assert dtypes == MIXED and measured.bound == BF16_BOUND and measured.holds and measured.mean > 1e-5


def test_weights_that_the_engine_did_not_get_are_seen(model: Path):
    def spoil(group) -> None:  # the embedding doubles as output layer; the engine's fused projections are copies
        for name, weight in group.worker.engines["actor"].named_weights():
            if "k_proj.weight" in name:
                weight.mul_(-3)

    assert not gate(tiny_config("smoke"), model, spoil)[0].holds


def test_an_engine_that_computes_nan_is_refused_in_one_line(model: Path):
    def spoil(group) -> None:
        for _, weight in group.worker.engines["actor"].named_weights():
            weight.fill_(float("nan"))

    with pytest.raises(MachineError, match="produced no token on 8 prompts"):
        gate(tiny_config("smoke"), model, spoil)


@pytest.mark.parametrize(
    ("keys", "dtypes", "holds", "expected"),
    [
        ((), FLOAT32, True, True),
        ((), FLOAT32, False, False),
        ((), MIXED, True, False),
        ((), ("bfloat16", "bfloat16"), True, False),
        (("rollout.top_p=0.9",), FLOAT32, True, False),
        (("rollout.top_k=5",), FLOAT32, True, False),
        (("rollout.old_log_prob=recompute",), FLOAT32, True, False),
        (("rollout.old_log_prob=rollout",), MIXED, False, True),
    ],
)
def test_who_gives_old_log_probs(keys, dtypes, holds, expected):
    assert engine_serves(tiny_config("smoke", *keys), dtypes, holds) is expected
