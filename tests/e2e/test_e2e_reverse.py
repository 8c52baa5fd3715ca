"""A run that begins with the weights of a Hugging Face folder, through the real command."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from verl_core.checkpoint.merge import merge, plan_merge
from verl_core.checkpoint.reverse import plan_reverse, reverse


@pytest.mark.slow
def test_a_run_begins_with_the_weights_of_a_reversed_folder(rlx, small, warm_model: Path, tmp_path: Path):
    """A learning rate near 0 leaves them as they were."""
    model = AutoModelForCausalLM.from_pretrained(warm_model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.75)
    model.save_pretrained(tmp_path / "other")
    reverse(plan_reverse(tmp_path / "other", tmp_path / "runs/smoke/run/checkpoints/global_step_0"))
    words = small(steps=1, trainer__test_freq=-1, trainer__max_ckpt_to_keep=1, actor__optim__lr=1e-12)
    done = rlx(*words, "--resume")
    assert done.returncode == 0 and "resumed from global_step_0" in done.stderr, done.stderr
    merge(plan_merge(tmp_path / "runs/smoke/run", tmp_path / "merged"))
    got, truth = (load_file(tmp_path / name / "model.safetensors") for name in ("merged", "other"))
    torch.testing.assert_close(got, truth, rtol=0, atol=1e-10)
