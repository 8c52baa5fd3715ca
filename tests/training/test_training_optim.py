"""Learning-rate courses against values by hand, parameter groups, clipping, and the joining of metrics."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from training_tiny import NllEntropy, make_batch, make_engine, totals, weights, write_model

from verl_core.algorithms.loss import Metric
from verl_core.config.schema import FsdpConfig, OptimConfig
from verl_core.training.fsdp.host_adamw import HostAdamW
from verl_core.training.fsdp.metrics import join, values
from verl_core.training.fsdp.optim import clip_and_step
from verl_core.training.schedule import factor, warmup_steps


def course(total: int, **options) -> list[float]:
    return [factor(OptimConfig(**options), step, total) for step in range(total)]


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"lr_warmup_steps": 4}, [0.25, 0.5, 0.75, 1, 1, 1]),
        ({"lr_warmup_steps_ratio": 0.5}, [1 / 3, 2 / 3, 1, 1, 1, 1]),
        ({"lr_scheduler_type": "linear"}, [1, 0.8, 0.6, 0.4, 0.2, 0]),
        ({"lr_scheduler_type": "linear", "lr_warmup_steps": 2, "min_lr_ratio": 0.1}, [0.5, 1, 1, 0.7, 0.4, 0.1]),
        (
            {"lr_scheduler_type": "cosine", "lr_warmup_steps": 1},
            [1, 1, *(0.5 + 0.5 * math.cos(math.pi * i / 4) for i in (1, 2, 3, 4))],
        ),
        (
            {"lr_scheduler_type": "cosine", "min_lr_ratio": 0.2},
            [0.2 + 0.4 * (1 + math.cos(math.pi * i / 5)) for i in range(6)],
        ),
    ],
)
def test_courses_by_hand(options, want):
    assert course(6, **options) == pytest.approx(want)


def test_course_stays_at_its_floor_past_the_end():
    assert factor(OptimConfig(lr_scheduler_type="cosine", min_lr_ratio=0.1), 50, 6) == pytest.approx(0.1)


def test_warm_up_is_counted_in_training_steps_and_rises_with_each_optimizer_step():
    optim = OptimConfig(lr_warmup_steps=2)
    assert warmup_steps(optim, 12, per_training_step=3) == 6
    rates = [factor(optim, step, 12, per_training_step=3) for step in range(8)]
    assert rates == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1, 1])
    by_ratio = OptimConfig(lr_warmup_steps_ratio=0.5)  # of all of them, however many a training step has
    assert warmup_steps(by_ratio, 12, per_training_step=3) == 6


def test_warmup_steps_win_over_their_ratio():
    assert warmup_steps(OptimConfig(lr_warmup_steps=0, lr_warmup_steps_ratio=0.5), 10) == 0


def test_muon_trains_layer_matrices_and_adamw_the_rest(tmp_path):
    optim = OptimConfig(optimizer="muon", lr=5e-3, muon_lr=0.02, muon_momentum=0.9, weight_decay=0.03, betas=(0.8, 0.9))
    engine = make_engine(write_model(tmp_path, tie_word_embeddings=False), optim=optim)
    names = {p: name for name, p in engine.model.named_parameters()}
    muon, adamw = engine.optimizers
    assert type(muon) is torch.optim.Muon and type(adamw) is torch.optim.AdamW
    in_muon = {names[p] for p in muon.param_groups[0]["params"]}
    assert in_muon == {
        f"model.layers.{i}.{part}.weight"
        for i in range(2)
        for part in [*(f"self_attn.{x}_proj" for x in "qkvo"), *(f"mlp.{x}_proj" for x in ("gate", "up", "down"))]
    }
    assert {names[p] for p in adamw.param_groups[0]["params"]} == set(names.values()) - in_muon
    assert (muon.param_groups[0]["lr"], muon.param_groups[0]["momentum"]) == (0.02, 0.9)
    group = adamw.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"], group["fused"]) == (5e-3, (0.8, 0.9), 0.03, True)


def stepped(optimizer_class, gradient: list[float], limit: float) -> tuple[nn.Linear, torch.optim.Optimizer, float]:
    """After a step whose size follows the gradient's: eps is large beside it."""
    torch.manual_seed(0)
    network = nn.Linear(1, 1)
    network.weight.grad, network.bias.grad = torch.tensor([gradient[:1]]), torch.tensor(gradient[1:])
    optimizer = optimizer_class(network.parameters(), lr=1.0, eps=100.0, weight_decay=0.0)
    norm = clip_and_step(network, [optimizer], limit)
    return network, optimizer, norm


FUSED = partial(torch.optim.AdamW, fused=True)


@pytest.mark.parametrize("optimizer_class", [FUSED, HostAdamW])
@pytest.mark.parametrize(("limit", "scale"), [(10.0, 1.0), (2.5, 0.5)])
def test_clipping_by_global_norm(optimizer_class, limit, scale):
    network, _, norm = stepped(optimizer_class, [3.0, 4.0], limit)
    assert norm == pytest.approx(5.0)
    assert network.weight.grad.item() == pytest.approx(3 * scale)
    assert network.bias.grad.item() == pytest.approx(4 * scale)
    whole, _, _ = stepped(optimizer_class, [3.0 * scale, 4.0 * scale], 1e9)
    torch.testing.assert_close(network.weight, whole.weight)


@pytest.mark.parametrize("optimizer_class", [FUSED, HostAdamW])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_changes_nothing(optimizer_class, bad):
    torch.manual_seed(0)
    before = nn.Linear(1, 1)
    network, optimizer, norm = stepped(optimizer_class, [bad, 4.0], 1.0)
    assert not math.isfinite(norm)
    assert torch.equal(network.weight, before.weight) and torch.equal(network.bias, before.bias)
    for state in optimizer.state.values():
        assert all(not value.any() for value in state.values())


def test_weights_stored_in_half_precision_are_clipped_and_stepped(tmp_path):
    """Their gradients, and the norm that torch makes of them, are of that type; the fused step reads float32."""
    folder, batch = write_model(tmp_path), make_batch()
    exact, half = (make_engine(folder, fsdp=FsdpConfig(model_dtype=dtype)) for dtype in ("float32", "bfloat16"))
    before = weights(half)
    want, got = (engine.step(batch, NllEntropy(), totals(batch)) for engine in (exact, half))
    assert got["actor/grad_norm"] == pytest.approx(want["actor/grad_norm"], rel=0.05)
    assert got["actor/skipped_steps"] == 0
    assert not any(torch.equal(tensor, before[name]) for name, tensor in weights(half).items())


def test_metrics_are_joined_as_parts_of_a_whole():
    parts = [
        {"mean": Metric(torch.tensor(6.0), 3), "sum": Metric(1.0, how="sum"), "max": Metric(2.0, how="max")},
        {"mean": Metric(2.0, torch.tensor(1)), "sum": Metric(2.0, how="sum"), "max": Metric(-1.0, how="max")},
        {"only here": Metric(5.0, how="min"), "empty": Metric(0.0, 0)},
        {"only here": Metric(4.0, how="min")},
    ]
    assert values(join(parts)) == {"mean": 2.0, "sum": 3.0, "max": 2.0, "only here": 4.0}
