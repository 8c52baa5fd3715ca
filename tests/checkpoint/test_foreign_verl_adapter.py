"""Adapters in the checkpoints of veRL: folded into their base, or left to peft."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from verl_cases import FIXTURES, copied, loaded, role_of, same, truth

from verl_core.checkpoint.merge import merge, plan_merge
from verl_core.config.errors import UserError

SCALE = 8 / 2  # alpha / r of the adapters


def adapter(case: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The base's weights by their own names, and those with the adapter folded in."""
    wrapped = {name.removeprefix("base_model.model."): tensor for name, tensor in truth(case).items()}
    base = {name.replace(".base_layer.", "."): t for name, t in wrapped.items() if ".lora_" not in name}
    folded = dict(base)
    for name, a in wrapped.items():
        if ".lora_A." in name:
            b = wrapped[name.replace(".lora_A.", ".lora_B.")]
            target = name.replace(".lora_A.default.", ".")
            folded[target] = base[target] + SCALE * (b @ a)
    return base, folded


def test_an_adapter_is_folded_or_left_to_peft(tmp_path):
    base, folded = adapter("lora_two_ranks")
    merge(plan_merge(FIXTURES / "lora_two_ranks", tmp_path / "out"), how="logits")
    got = loaded(tmp_path / "out")
    assert got.keys() == folded.keys()
    for name, tensor in folded.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-6, atol=1e-6)
        adapted = any(f"{module}.weight" in name for module in ("q_proj", "v_proj", "down_proj"))
        assert torch.equal(got[name], base[name]) != adapted, name
    merge(plan_merge(FIXTURES / "lora_two_ranks", tmp_path / "adapter", lora="adapter"))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 8, ["down_proj", "q_proj", "v_proj"])
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    same(stored, {n.replace(".default.", "."): t for n, t in truth("lora_two_ranks").items() if ".lora_" in n})


def test_an_adapter_without_alpha_asks_for_it(tmp_path):
    run = copied("lora_two_ranks", tmp_path)
    meta = role_of(run) / "lora_train_meta.json"
    with pytest.raises(UserError, match=r"--lora-alpha 4, but .*lora_train_meta.json says 8"):
        plan_merge(run, tmp_path / "out", lora_alpha=4)
    meta.write_text(json.dumps({"r": 2, "lora_alpha": 0}))
    with pytest.raises(UserError, match=r"no lora_train_meta.json says its alpha") as refused:
        plan_merge(run, tmp_path / "out")
    assert "--lora-alpha" in refused.value.hint
    meta.unlink()
    merge(plan_merge(run, tmp_path / "out", lora_alpha=8))
    merge(plan_merge(FIXTURES / "lora_two_ranks", tmp_path / "told"))
    same(load_file(tmp_path / "out/model.safetensors"), load_file(tmp_path / "told/model.safetensors"))


def test_an_adapter_saved_alone_needs_its_base(tmp_path):
    base, folded = adapter_alone(tmp_path / "base")
    with pytest.raises(UserError, match="holds the adapter alone") as refused:
        plan_merge(FIXTURES / "lora_only", tmp_path / "out")
    assert "--base" in refused.value.hint
    plan = plan_merge(FIXTURES / "lora_only", tmp_path / "out", base=str(tmp_path / "base"))
    merge(plan, how="logits")
    got = loaded(tmp_path / "out")
    for name, tensor in folded.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-6, atol=1e-6)
    assert plan.report()["base"] == str(tmp_path / "base") and got.keys() == base.keys()
    merge(plan_merge(FIXTURES / "lora_only", tmp_path / "adapter", lora="adapter", base=str(tmp_path / "base")))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "base")


def adapter_alone(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Makes the Hugging Face folder of the base."""
    base, folded = adapter("lora_only")
    shutil.copytree(role_of(FIXTURES / "lora_only") / "huggingface", folder)
    save_file({n: t for n, t in base.items() if n != "lm_head.weight"}, folder / "model.safetensors")
    return base, folded
