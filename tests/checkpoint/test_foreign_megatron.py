"""Checkpoints of veRL's Megatron workers as a source of a merge; the shards are megatron-core's own
(fixtures/megatron.tar.xz)."""

import json
from pathlib import Path

import pytest
import torch
from checkpoint_models import tiny_model
from foreign_cases import TRUTH, assert_loads_whole, assert_same_tensors, cut, merged, refusal, unpacked
from safetensors.torch import load_file

from verl_core.checkpoint.foreign.recognise import recognise
from verl_core.checkpoint.foreign.source import SourceOptions

SHARDS = "model/dist_ckpt"


@pytest.fixture
def actors(tmp_path: Path) -> Path:
    return unpacked("megatron", tmp_path / "actors")


def changed(path: Path, **keys: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.mark.parametrize("case", ["qwen2", "qwen3", "qwen3_moe"])
def test_shards_of_megatron_core(actors, tmp_path, case):
    """Tied and biased; a layer at a time; experts spread over ranks. The padded vocabulary is cut."""
    truth = load_file(actors / case / TRUTH)
    assert_same_tensors(merged(actors / case, tmp_path / "out"), truth)
    assert_loads_whole(tmp_path / "out")
    source = recognise(actors / case, SourceOptions())
    assert source.step == 3
    for name, value in truth.items():
        rows = [source.rows(name, row, row + 1) for row in range(value.shape[0])]
        assert torch.equal(torch.cat(rows), value)


def test_folder_of_the_run_and_of_the_step(actors, tmp_path):
    step = tmp_path / "run" / "global_step_3"
    step.mkdir(parents=True)
    (actors / "qwen2").rename(step / "actor")
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("3")
    first = merged(tmp_path / "run", tmp_path / "one")
    assert_same_tensors(merged(step, tmp_path / "two"), first)
    assert "no role 'critic'" in refusal(step, tmp_path / "out", role="critic")


def test_weights_as_published(actors, tmp_path):
    role = actors / "qwen2"
    model = tiny_model(False, torch.bfloat16)
    model.save_pretrained(role / "model" / "huggingface")
    changed(role / "ckpt_contents.json", contents={"model": {"path": "model/huggingface", "format": "huggingface"}})
    assert_same_tensors(merged(role, tmp_path / "out"), model.state_dict())
    weights = role / "model" / "huggingface" / "model.safetensors"
    cut(weights, 100)
    assert "model.safetensors" in refusal(role, tmp_path / "other")
    weights.unlink()
    assert "lacks model.safetensors" in refusal(role, tmp_path / "other")


def test_every_missing_and_cut_piece_is_named(actors, tmp_path):
    role, out = actors / "qwen3", tmp_path / "out"
    first, second = sorted((role / SHARDS).glob("*.distcp"))
    cut(first, 20_000)
    second.unlink()
    assert f"{first.name} has " in (said := refusal(role, out)) and f"{second.name} is missing" in said
    (role / SHARDS / ".metadata").unlink()
    assert "model/dist_ckpt/.metadata is missing" in refusal(role, out)
    (role / "model/huggingface/config.json").unlink()
    assert "config.json is missing" in refusal(role, out)
    (role / "ckpt_contents.json").write_text("{")
    assert "ckpt_contents.json" in refusal(role, out)


def test_a_config_of_other_heads_is_refused(actors, tmp_path):
    config = actors / "qwen3" / "model/huggingface/config.json"
    changed(config, num_key_value_heads=4)
    assert "32 rows, the config's 4 heads in 4 groups of size 4 take 48" in refusal(actors / "qwen3", tmp_path / "out")


def test_unknown_tensors_are_named(actors, tmp_path):
    path = actors / "qwen3" / SHARDS / ".metadata"
    name = b"decoder.final_layernorm.weight"
    path.write_bytes(path.read_bytes().replace(name, b"decoder.final_layernorm.strang"))
    assert "decoder.final_layernorm.strang is unknown" in refusal(actors / "qwen3", tmp_path / "out")


def test_first_layout_and_adapter_shards_are_refused(actors, tmp_path):
    old = tmp_path / "global_step_3" / "actor"
    (old / "dist_ckpt").mkdir(parents=True)
    assert "first Megatron layout" in refusal(old.parent, tmp_path / "out")
    contents = actors / "qwen2" / "ckpt_contents.json"
    changed(contents, schema_version=3)
    assert "is of layout 3, 2 is read" in refusal(actors / "qwen2", tmp_path / "out")
    model = {"path": "model/huggingface", "format": "huggingface"}
    changed(contents, schema_version=2, contents={"model": model, "peft_adapters": {"path": SHARDS}})
    assert "an adapter in Megatron's shards" in refusal(actors / "qwen2", tmp_path / "out")
