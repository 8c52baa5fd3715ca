"""Checkpoints that veRL 0.9.1's own manager wrote (make_verl_checkpoints.py), beside the weights that it was given."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

FIXTURES = Path(__file__).with_name("verl_fixtures")


def truth(case: str) -> dict[str, torch.Tensor]:
    return load_file(FIXTURES / f"{case}.safetensors")


def copied(case: str, folder: Path) -> Path:
    """A run to break; its role's folder is `role_of`."""
    return Path(shutil.copytree(FIXTURES / case, folder / case))


def role_of(run: Path) -> Path:
    return next((run / "global_step_3").iterdir())


def loaded(folder: Path, auto=AutoModelForCausalLM) -> dict[str, torch.Tensor]:
    """What transformers makes of a merged folder; fails on any missing, unexpected or mismatched key."""
    model, report = auto.from_pretrained(folder, output_loading_info=True)
    assert {key: len(value) for key, value in report.items()} == dict.fromkeys(report, 0)
    return dict(model.state_dict())


def same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name
