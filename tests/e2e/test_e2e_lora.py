"""Runs that train an adapter: through the real command from warm-up to a merged model."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.e2e.conftest import records, run_dir_of
from verl_core.checkpoint.merge import merge, plan_merge

IDS = torch.arange(1, 60)[None]
LORA = {"model__lora_rank": 4, "model__lora_alpha": 8, "actor__optim__lr": 1e-3}


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model.eval()(IDS).logits


@pytest.mark.slow
def test_an_adapter_run_merges_and_evaluates_as_it_ended(rlx, small, warm_model: Path, tmp_path: Path):
    """PPO with a KL term: the critic is trained whole and the reference is the base."""
    done = rlx(*small("smoke-ppo", steps=3, trainer__test_freq=-1, actor__use_kl_loss="true", **LORA))
    assert done.returncode == 0 and "the actor trains" in done.stderr, done.stderr
    lines = records(run_dir_of(tmp_path))
    assert lines[1]["actor/kl_loss"] == 0 and lines[-1]["actor/kl_loss"] > 0

    assert (done := rlx("merge", "runs/smoke/run", "--out", "whole", "--json")).returncode == 0, done.stderr
    assert json.loads(done.stdout)["lora"] == "fold" and json.loads(done.stdout)["kept"] == pytest.approx(1, abs=1e-3)
    base = AutoModelForCausalLM.from_pretrained(warm_model)
    plain, whole = logits(base), logits(AutoModelForCausalLM.from_pretrained(tmp_path / "whole"))
    assert (whole - plain).abs().max() > 1e-2
    adapter = run_dir_of(tmp_path) / "checkpoints" / "global_step_3" / "actor" / "weights"
    torch.testing.assert_close(logits(PeftModel.from_pretrained(base, adapter)), whole, rtol=0, atol=1e-4)

    done = rlx("eval", "runs/smoke/run", "--json")
    assert done.returncode == 0, done.stderr
    score = "val/test_score/rlx/show-your-work"
    assert json.loads(done.stdout)["metrics"][score] == lines[-1][score]


@pytest.mark.slow
def test_an_adapter_run_resumes_bit_for_bit_and_with_its_own_adapter_only(rlx, small, tmp_path: Path):
    words = small("smoke", steps=4, **LORA)
    assert (done := rlx(*words)).returncode == 0, done.stderr
    run_dir = run_dir_of(tmp_path)
    unbroken = records(run_dir)
    shutil.rmtree(run_dir / "checkpoints" / "global_step_4")
    assert (done := rlx(*words, "--resume")).returncode == 0, done.stderr
    assert records(run_dir) == unbroken
    done = rlx(*words, "--resume", "model.lora_alpha=16", "trainer.total_training_steps=5")
    assert (
        done.returncode == 1 and "lora_alpha=8" in done.stderr and "hint: resume with model.lora_alpha=8" in done.stderr
    )

    assert (done := rlx("merge", "runs/smoke/run", "--out", "part", "--lora", "adapter")).returncode == 0, done.stderr
    assert (done := rlx("merge", "runs/smoke/run", "--out", "whole")).returncode == 0, done.stderr
    assert (done := rlx("eval", "whole", "smoke", "data.val_max_samples=20", "--json")).returncode == 0, done.stderr
    score = "val/test_score/rlx/show-your-work"
    assert json.loads(done.stdout)["metrics"][score] == unbroken[-1][score]


@pytest.mark.slow
def test_the_adapter_of_supervised_training_says_what_was_trained(train_here, small, warm_model: Path, tmp_path: Path):
    """Case K3, as `test_peft_reads_the_weights_of_a_checkpoint` of any engine."""
    train_here(small("smoke-sft", steps=1, model__target_modules="[q_proj, down_proj]", **LORA))
    merge(plan_merge(run_dir_of(tmp_path), tmp_path / "adapter", lora="adapter"))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (4, 8, "CAUSAL_LM")
    assert (sorted(config["target_modules"]), config["base_model_name_or_path"]) == (
        ["down_proj", "q_proj"],
        str(warm_model),
    )
    base = AutoModelForCausalLM.from_pretrained(warm_model)
    adapted = logits(PeftModel.from_pretrained(base, tmp_path / "adapter"))
    assert not torch.equal(adapted, logits(AutoModelForCausalLM.from_pretrained(warm_model)))


def test_a_target_that_no_module_answers_to_is_refused_before_the_warm_up(rlx, small, tmp_path: Path):
    done = rlx(*small("smoke", steps=1, model__target_modules="[q_proj, qq_proj]", **LORA))
    assert done.returncode == 1 and "'qq_proj'" in done.stderr and "q_proj, k_proj, v_proj" in done.stderr
    assert "hint: model.target_modules=all-linear" in done.stderr and "warm-up" not in done.stderr + done.stdout
    assert not run_dir_of(tmp_path).exists()


@pytest.mark.slow
def test_an_adapter_learns_the_embedded_task(rlx, tmp_path: Path):
    """The warm-up trains the whole model, then 10 % as many parameters do what the whole model does."""
    words = ["model.lora_rank=8", "model.lora_alpha=16", "actor.optim.lr=1e-3"]
    done = rlx("train", "smoke", "--json", *words, "trainer.experiment_name=run")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["val"]["first"] <= 0.12 and summary["val"]["last"] >= 0.95
    assert "the actor trains 29,184 of its 284,160 parameters" in (run_dir_of(tmp_path) / "train.log").read_text()
