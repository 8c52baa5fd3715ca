"""The parity gate on a real rank: holds at any temperature, sees what differs, and decides who gives old log-probs."""

import asyncio
import math
from pathlib import Path

import pytest

from tests.controller.controller_tiny import one_rank, tiny_config, tiny_model
from verl_core.config.errors import MachineError
from verl_core.controller.parity import BF16_BOUND, FLOAT32_BOUND, Parity, enforce, engine_serves, measure
from verl_core.controller.roles import Role
from verl_core.controller.rollouts import Rollout
from verl_core.data.dataset import PromptDataset
from verl_core.models.pretrained import load_tokenizer
from verl_core.rollout.client import RolloutClient
from verl_core.rollout.protocol import Completion

FLOAT32, MIXED = ("float32", "float32"), ("float32", "bfloat16")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def gate(config, model: Path, spoil=lambda group: None) -> tuple[Parity, tuple[str, str]]:
    """What the gate measures; `spoil` may change the trainer's weights after the engine has got them."""
    config.data.train_max_samples = 20
    dataset = PromptDataset(config.data.train_files, config.data, load_tokenizer(config.model, model), "train", 0)
    with one_rank(config, model) as group:

        async def work() -> tuple[Parity, tuple[str, str]]:
            rollout = Rollout(group, group, config)
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


SMALL, WITHIN, BEYOND = Parity(0.01, 1.0, 0.15), Parity(0.1, 1.0, 0.15), Parity(0.2, 1.0, 0.15)
REJECT = ("algorithm.rollout_correction.rollout_rs=token_k1", "algorithm.rollout_correction.rollout_rs_threshold=2")
WEIGH = ("algorithm.rollout_correction.rollout_is=token",)
VLLM = ("rollout.engine=vllm",)


@pytest.mark.parametrize(
    ("keys", "dtypes", "measured", "expected"),
    [
        ((), FLOAT32, Parity(1e-6, 1e-5, FLOAT32_BOUND), True),
        ((), FLOAT32, Parity(2e-4, 1e-3, FLOAT32_BOUND), False),
        ((), FLOAT32, None, True),
        ((), MIXED, None, False),  # without a measurement only what computes in one way is trusted
        (VLLM, FLOAT32, None, False),
        ((), MIXED, SMALL, True),
        (VLLM, MIXED, SMALL, True),
        (VLLM, MIXED, WITHIN, False),  # half the clip range
        ((*VLLM, "actor.clip_ratio=0.5"), MIXED, WITHIN, True),
        ((*VLLM, "actor.clip_ratio_high=0.02"), MIXED, SMALL, False),
        ((*VLLM, *REJECT), MIXED, WITHIN, True),
        ((*VLLM, *REJECT), MIXED, BEYOND, False),
        ((*VLLM, *REJECT), MIXED, Parity(0.01, 1.0, 0.15, missing=1), False),
        (
            WEIGH,
            FLOAT32,
            Parity(1e-6, 1e-5, FLOAT32_BOUND),
            False,
        ),  # weights compare the trainer's pass with the engine
        (("rollout.top_p=0.9",), FLOAT32, SMALL, False),
        (("rollout.top_k=5",), FLOAT32, SMALL, False),
        (("rollout.old_log_prob=recompute",), FLOAT32, SMALL, False),
        (("rollout.old_log_prob=rollout",), MIXED, BEYOND, True),
    ],
)
def test_who_gives_old_log_probs(keys, dtypes, measured, expected):
    assert engine_serves(tiny_config("smoke", *keys), dtypes, measured) is expected


def test_a_resumed_run_keeps_its_decision_while_it_may():
    config, weighed = tiny_config("smoke", *VLLM), tiny_config("smoke", *VLLM, *WEIGH)
    assert engine_serves(config, MIXED, WITHIN, before=True) and not engine_serves(config, MIXED, SMALL, before=False)
    assert not engine_serves(weighed, MIXED, SMALL, before=True)
    assert not engine_serves(tiny_config("smoke", "rollout.old_log_prob=recompute"), MIXED, SMALL, before=True)


def test_a_log_prob_that_is_no_number_is_counted_and_refused(model: Path):
    """Case O9, at the gate."""

    async def broken(request):
        return Completion(request.request_id, [7, 8, 9], [-5.5, math.nan, -math.inf], [0, 0, 0], "length")

    config = tiny_config("smoke")
    config.data.train_max_samples = 20
    dataset = PromptDataset(config.data.train_files, config.data, load_tokenizer(config.model, model), "train", 0)
    with one_rank(config, model) as group:
        measured = asyncio.run(measure(config, dataset, broken, Role("actor", group), FLOAT32))
    assert measured.missing == 16 and math.isfinite(measured.mean) and not measured.holds
    with pytest.raises(MachineError, match="16 tokens have a log-prob that is not a number"):
        enforce(measured, config)
