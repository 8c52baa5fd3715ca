"""Optimizers that keep their state elsewhere or smaller: the same steps as plain AdamW, and resumable."""

import pytest
import torch
from training_tiny import NllEntropy, make_batch, make_engine, totals, weights, write_model

from verl_core.config.schema import FsdpConfig, OptimConfig
from verl_core.training.fsdp.host_adamw import HostAdamW


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def trained(folder, steps, optimizer, engine=None, **options):
    engine = engine or make_engine(folder, optim=OptimConfig(optimizer=optimizer, lr=1e-2, eps=1e-3), **options)
    for seed in range(steps):
        batch = make_batch(seed=seed)
        engine.step(batch, NllEntropy(), totals(batch))
    return engine


@pytest.mark.parametrize("fsdp", [FsdpConfig(), FsdpConfig(dtype="bfloat16")])  # plain modules, sharded ones
def test_state_in_host_memory_changes_no_bit(folder, fsdp):
    plain, host = (trained(folder, 3, kind, fsdp=fsdp) for kind in ("adamw", "adamw_host"))
    assert isinstance(host.optimizers[0], HostAdamW)
    for (name, a), b in zip(weights(plain).items(), weights(host).values(), strict=True):
        assert torch.equal(a, b), name
    host.offload("cpu")
    host.offload("device")
    assert all(e["exp_avg"].device.type == "cpu" for e in host.optimizers[0].state.values())


@pytest.mark.parametrize("fsdp", [FsdpConfig(), FsdpConfig(dtype="bfloat16")])
def test_host_state_resumes_bit_for_bit_also_as_plain_adamw(folder, fsdp):
    whole, half = trained(folder, 4, "adamw_host", fsdp=fsdp), trained(folder, 2, "adamw_host", fsdp=fsdp)
    state = half.state()
    for kind in ("adamw_host", "adamw"):
        again = make_engine(folder, optim=OptimConfig(optimizer=kind, lr=1e-2, eps=1e-3), fsdp=fsdp)
        again.load_state(state)
        for seed in (2, 3):
            batch = make_batch(seed=seed)
            again.step(batch, NllEntropy(), totals(batch))
        for (name, a), b in zip(weights(whole).items(), weights(again).values(), strict=True):
            assert torch.equal(a, b), (kind, name)


@pytest.mark.slow  # its step is compiled, here by a C++ compiler
def test_eight_bit_state_is_near_adamw_and_resumes(tmp_path):
    folder = write_model(tmp_path, hidden_size=64, intermediate_size=128, vocab_size=256)
    plain, small = trained(folder, 4, "adamw"), trained(folder, 4, "adamw_8bit")
    kinds = {type(e["exp_avg"]).__name__ for e in small.optimizers[0].state.values()}
    assert "OptimState8bit" in kinds
    before = weights(make_engine(folder))
    for name, a in weights(plain).items():
        moved, apart = (a - before[name]).norm(), (a - weights(small)[name]).norm()
        assert apart < 0.1 * moved, name
    half = trained(folder, 2, "adamw_8bit")
    again = make_engine(folder, optim=OptimConfig(optimizer="adamw_8bit", lr=1e-2, eps=1e-3))
    again.load_state(half.state())
    for seed in (2, 3):
        batch = make_batch(seed=seed)
        again.step(batch, NllEntropy(), totals(batch))
    for name, a in weights(small).items():  # its codes have no -1, so a block is scaled anew when it is read back
        moved, apart = (a - before[name]).norm(), (a - weights(again)[name]).norm()
        assert apart < 0.02 * moved, name
