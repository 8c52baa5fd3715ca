"""peft's folder as a source of a merge: written by peft itself, folded into its base or copied."""

import json
from pathlib import Path

import pytest
import torch
from checkpoint_models import tiny_model
from foreign_cases import assert_loads_whole, assert_same_tensors, cut, merged, refusal
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from verl_core.checkpoint.merge import merge, plan_merge

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter that has been trained, beside its base."""
    tiny_model(True).save_pretrained(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    targets = ["q_proj", "down_proj"]
    wrapped = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM"))
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    wrapped.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_folded_into_the_base_it_names(adapter, tmp_path):
    got = merged(adapter, tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    folded = PeftModel.from_pretrained(base, adapter).merge_and_unload().state_dict()
    del folded["lm_head.weight"]  # tied
    assert got.keys() == folded.keys()
    assert all(torch.allclose(got[name], value, atol=1e-6) for name, value in folded.items())
    assert_loads_whole(tmp_path / "out")


def test_copied_for_peft(adapter, tmp_path):
    merge(plan_merge(adapter, tmp_path / "out", lora="adapter"))
    assert_same_tensors(load_file(tmp_path / "out" / WEIGHTS), load_file(adapter / WEIGHTS))
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert PeftModel.from_pretrained(base, tmp_path / "out").peft_config["default"].lora_alpha == 16


def test_an_adapter_that_stays_one_needs_no_base(adapter, tmp_path):
    (tmp_path / "base").rename(tmp_path / "moved")
    merge(plan_merge(adapter, tmp_path / "out", lora="adapter"))
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "moved")
    assert PeftModel.from_pretrained(base, tmp_path / "out").peft_config["default"].lora_alpha == 16


def test_base_that_moved(adapter, tmp_path):
    truth = merged(adapter, tmp_path / "one")
    (tmp_path / "base").rename(tmp_path / "moved")
    assert str(tmp_path / "base") in refusal(adapter, tmp_path / "out")
    assert_same_tensors(merged(adapter, tmp_path / "out", base=str(tmp_path / "moved")), truth)


def test_pickled_weights_are_read_as_the_others(adapter, tmp_path):
    truth = merged(adapter, tmp_path / "one")
    torch.save(load_file(adapter / WEIGHTS), adapter / "adapter_model.bin")
    (adapter / WEIGHTS).unlink()
    assert_same_tensors(merged(adapter, tmp_path / "out"), truth)
    torch.save([print], adapter / "adapter_model.bin")
    assert "it calls for" in refusal(adapter, tmp_path / "other")


def test_missing_cut_and_strange_pieces_are_named(adapter, tmp_path):
    out, whole = tmp_path / "out", load_file(adapter / WEIGHTS)
    lost = next(name for name in whole if "lora_B" in name)
    save_file({name: value for name, value in whole.items() if name != lost}, adapter / WEIGHTS)
    assert f"{lost} is missing" in refusal(adapter, out)
    save_file(whole | {"base_model.model.strange": torch.ones(1)}, adapter / WEIGHTS)
    assert "base_model.model.strange is not of a plain LoRA adapter" in refusal(adapter, out)
    cut(adapter / WEIGHTS, 100)
    assert f"{WEIGHTS} is cut" in refusal(adapter, out)
    (adapter / WEIGHTS).unlink()
    assert f"{WEIGHTS} is missing" in refusal(adapter, out)


def test_a_rank_that_the_tensors_have_not(adapter, tmp_path):
    config = adapter / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"r": 8}))
    assert "says r=8, the tensors have 4" in refusal(adapter, tmp_path / "out")


def test_adapter_beside_the_files_of_its_optimizer(adapter, tmp_path):
    """transformers' Trainer with DeepSpeed writes both; the adapter is what was trained."""
    (adapter / "latest").write_text("global_step1")
    (adapter / "global_step1").mkdir()
    (adapter / "global_step1" / "zero_pp_rank_0_mp_rank_00_model_states.pt").touch()
    assert plan_merge(adapter, tmp_path / "out").report()["source"] == "peft adapter of rank 4"


@pytest.mark.parametrize("lora", ["fold", "adapter"])
def test_the_tokenizer_beside_the_adapter_wins(adapter, tmp_path, lora):
    for folder, said in ((tmp_path / "base", "base"), (adapter, "trained")):
        (folder / "chat_template.jinja").write_text(said)
    merge(plan_merge(adapter, tmp_path / "out", lora=lora))
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "trained"
