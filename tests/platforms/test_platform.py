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
    assert 0.01 < cpu.memory_stats()["max_memory_allocated_gb"] < 1000


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
