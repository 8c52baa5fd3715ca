"""The platform of this process."""

import random

import numpy as np
import pytest
import torch

from verl_core.config.errors import MachineError
from verl_core.platforms import current


def test_cpu_platform_names_what_follows_from_it():
    cpu = current("cpu")
    assert (cpu.name, cpu.comm_backend, cpu.device, cpu.compute_dtype) == (
        "cpu",
        "gloo",
        torch.device("cpu"),
        torch.float32,
    )
    assert cpu.hardware


def test_a_peak_starts_again_and_what_is_freed_is_not_held():
    cpu = current("cpu")
    cpu.reset_peak()
    before = cpu.memory()
    block = torch.ones(25_000_000)  # 100 MB
    held = cpu.memory()
    del block
    after = cpu.memory()
    assert held.allocated - before.allocated > 90e6 and held.allocated - after.allocated > 90e6
    assert after.peak - before.allocated > 90e6
    cpu.reset_peak()
    again = cpu.memory()
    assert again.peak - again.allocated < 50e6 and again.reserved == again.allocated


def test_a_gpu_that_is_not_there_is_refused():
    missing = torch.cuda.device_count()
    with pytest.raises(MachineError, match=f"needs GPU {missing}") as error:
        current("cuda", local_rank=missing)
    assert "trainer.device=cpu" in error.value.hint


def test_seed_all_repeats_every_generator():
    def draw():
        current("cpu").seed_all(3)
        return random.random(), float(np.random.rand()), torch.rand(2).tolist()

    assert draw() == draw()


def test_deterministic_and_threads_take_effect():
    cpu, threads = current("cpu"), torch.get_num_threads()
    try:
        cpu.set_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        cpu.set_threads(2)
        assert torch.get_num_threads() == 2
        cpu.set_threads(None)
        assert torch.get_num_threads() == 1
    finally:
        cpu.set_deterministic(False)
        torch.set_num_threads(threads)
    assert not torch.are_deterministic_algorithms_enabled()
