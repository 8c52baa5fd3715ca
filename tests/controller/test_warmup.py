"""The warm-up computes under the settings of the run it prepares, and repeats."""

from pathlib import Path

import pytest
import torch

from tests.controller.controller_tiny import tiny_config
from verl_core.controller.warmup import warm_up

PHASES = "warmup.phases=[{name: skill, steps: 2, optim: {lr: 1e-3}}]"


def warmed(tmp_path: Path, name: str, *keys: str) -> bytes:
    (tmp_path / name).mkdir()
    folder = warm_up(tiny_config("smoke", PHASES, *keys), tmp_path / name, lambda *_: None, lambda: False)
    assert folder is not None
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture
def process_settings():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def test_threads_and_determinism_of_the_trainer_hold_in_the_warm_up(tmp_path: Path, process_settings: None):
    warmed(tmp_path, "a", "trainer.num_threads=2", "trainer.deterministic=true")
    assert torch.get_num_threads() == 2 and torch.are_deterministic_algorithms_enabled()


def test_a_seed_gives_one_model(tmp_path: Path, process_settings: None):
    first = warmed(tmp_path, "a")
    assert warmed(tmp_path, "b") == first
    assert warmed(tmp_path, "c", "trainer.seed=1") != first


def test_a_warm_up_that_is_stopped_leaves_no_model_and_starts_again(tmp_path: Path, process_settings: None):
    config = tiny_config("smoke", PHASES)
    assert warm_up(config, tmp_path, lambda *_: None, lambda: True) is None
    assert not (tmp_path / "warmup").exists()
    assert warm_up(config, tmp_path, lambda *_: None, lambda: False) == tmp_path / "warmup"
    assert len((tmp_path / "warmup.jsonl").read_text().splitlines()) == 2
