"""The artefact: a merged run is a plain Hugging Face model that answers as the trainer did."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from tests.e2e.conftest import run_dir_of


@pytest.mark.slow
def test_merge_answers_as_the_trainer_and_loads_with_no_key_missing(rlx, small, tmp_path: Path):
    words = small("smoke-ppo", steps=3, trainer__test_freq=-1, data__val_max_samples=50, data__train_batch_size=8)
    assert (done := rlx(*words)).returncode == 0, done.stderr
    run_dir, merged, answers = run_dir_of(tmp_path), tmp_path / "merged", tmp_path / "answers.jsonl"
    assert (done := rlx("merge", str(run_dir), "--out", str(merged))).returncode == 0, done.stderr
    done = rlx("eval", str(run_dir), "--out", str(answers), "--json")
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)["metrics"]
    last = json.loads((run_dir / "summary.json").read_text())["val"]["last"]
    assert metrics["val/test_score/rlx/show-your-work"] == last

    model, report = AutoModelForCausalLM.from_pretrained(merged, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    tokenizer = AutoTokenizer.from_pretrained(merged)
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(rows) == 50
    for row in rows:
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_tensors="pt")
        ids = prompt["input_ids"] if not isinstance(prompt, torch.Tensor) else prompt
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
        assert tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True) == row["answer"]

    critic = tmp_path / "critic"
    done = rlx("merge", str(run_dir), "--out", str(critic), "--role", "critic")
    assert done.returncode == 0, done.stderr
    values, report = AutoModelForTokenClassification.from_pretrained(critic, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert values.score.weight.abs().sum() > 0  # it has learned something


def test_an_empty_run_cannot_be_merged(rlx, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    done = rlx("merge", "empty", "--out", "out")
    assert done.returncode == 1 and "hint:" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["eval", "nowhere", "smoke"], ["merge", "nowhere", "--out", "out"]])
def test_a_source_that_is_not_there_is_named(rlx, tmp_path: Path, words: list[str]):
    done = rlx(*words)
    assert done.returncode == 1 and "nowhere" in done.stderr and "Traceback" not in done.stderr
