"""`rlx merge --reverse`: from a Hugging Face folder to a checkpoint, and back to the same bytes."""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from checkpoint_models import engine_state, tiny_model
from foreign_cases import assert_same_tensors, cut, merged
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3MoeConfig

from verl_core.checkpoint import CheckpointStore, load_role
from verl_core.checkpoint.objects import ObjectPath
from verl_core.checkpoint.reverse import plan_reverse, reverse
from verl_core.checkpoint.reverse_job import main
from verl_core.config.errors import RunError, UserError


def mixture(seed: int = 0) -> PreTrainedModel:
    """Published with a tensor for each expert, which transformers stacks."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        moe_intermediate_size=6,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        num_experts=3,
        num_experts_per_tok=2,
        tie_word_embeddings=False,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


@settings(max_examples=8)
@given(
    tied=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    vocabulary=st.integers(3, 40),
    stored_in=st.sampled_from(["2KB", "20KB", "1GB"]),
    file_bytes=st.sampled_from([1000, 30_000, 1 << 30]),
    seed=st.integers(0, 1 << 20),
)
def test_merge_of_the_reverse_gives_the_same_bytes(
    tmp_path_factory, tied, dtype, vocabulary, stored_in, file_bytes, seed
):
    root = tmp_path_factory.mktemp("reverse")
    model = tiny_model(tied, dtype, seed, vocabulary)
    model.save_pretrained(root / "model", max_shard_size=stored_in)
    reverse(plan_reverse(root / "model", root / "global_step_0"), max_file_bytes=file_bytes)
    assert_same_tensors(merged(root / "global_step_0", root / "out", "tensors"), weights_of(root / "model"))


def test_experts_are_stacked_and_taken_apart_again(tmp_path):
    model = mixture()
    model.save_pretrained(tmp_path / "model")
    reverse(plan_reverse(tmp_path / "model", tmp_path / "run/checkpoints/global_step_0"))
    assert_same_tensors(weights_of(tmp_path / "run/checkpoints/global_step_0/actor/weights"), model.state_dict())
    assert_same_tensors(merged(tmp_path / "run", tmp_path / "out"), weights_of(tmp_path / "model"))


def test_an_engine_starts_from_it(tmp_path):
    tiny_model(True, seed=3).save_pretrained(tmp_path / "model")
    out = tmp_path / "run/checkpoints/global_step_0"
    reverse(plan_reverse(tmp_path / "model", out))
    newest = CheckpointStore(out.parent).latest()
    assert newest == out
    fresh = engine_state(tiny_model(True, seed=4))
    fresh.optimizer.clear()
    got = load_role(newest / "actor", fresh)
    assert_same_tensors(dict(got.weights), tiny_model(True, seed=3).state_dict())
    assert got.scalars == {"updates": 0, "steps": {}}


def test_a_folder_on_a_store_is_copied_without_what_is_no_model(s3, request, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    (tmp_path / "copies").mkdir()
    tiny_model(True).save_pretrained(tmp_path / "model", max_shard_size="20KB")
    (tmp_path / "model/more").mkdir()
    for name in ("pytorch_model.bin", "consolidated.safetensors", "more/model.safetensors", "chat_template.jinja"):
        (tmp_path / "model" / name).write_text(name)
    place = ObjectPath(f"{s3.url}/{request.node.name}")
    place.upload(tmp_path / "model")
    plan = plan_reverse(str(place), tmp_path / "global_step_0")
    copied = {path.relative_to(plan.folder).as_posix() for path in plan.folder.rglob("*")}
    assert "chat_template.jinja" in copied
    assert not copied & {"pytorch_model.bin", "consolidated.safetensors", "more/model.safetensors"}
    reverse(plan)
    (tmp_path / "model/consolidated.safetensors").unlink()
    assert_same_tensors(weights_of(tmp_path / "global_step_0/actor/weights"), weights_of(tmp_path / "model"))

    def refused(url: str) -> str:
        with pytest.raises(UserError) as caught:
            plan_reverse(url, tmp_path / "out")
        return caught.value.message

    assert refused(f"{place}/more") == f"{place}/more holds no config.json"
    assert refused("s3://nobucket/model") == "there is no s3://nobucket"
    (place / "code.py").write_text("raise SystemExit(3)")
    assert refused(str(place)).startswith(f"{place} holds code of its own")
    shard = min(copied, key=lambda name: not name.endswith(".safetensors"))
    place.delete(["code.py", shard])
    assert refused(str(place)) == f"{place} lacks {shard}"


def test_faults_are_named_before_anything_is_written(tmp_path):
    folder, out = tmp_path / "model", tmp_path / "out"

    def refused() -> str:
        with pytest.raises(UserError) as caught:
            plan_reverse(folder, out)
        assert not out.exists()
        return caught.value.message

    tiny_model(False).save_pretrained(folder)
    whole = load_file(folder / "model.safetensors")
    strange = {name: value for name, value in whole.items() if name != "model.norm.weight"}
    save_file(strange | {"strange": torch.ones(1)}, folder / "model.safetensors")
    assert "model.norm.weight is missing" in (said := refused()) and "strange is unknown" in said
    cut(folder / "model.safetensors", 100)
    assert "model.safetensors" in refused()
    (folder / "code.py").write_text("raise SystemExit(3)")
    assert "holds code of its own, which this would run: code.py" in refused()
    (folder / "code.py").unlink()
    (folder / "model.safetensors").unlink()
    assert "lacks model.safetensors" in refused()
    (folder / "config.json").unlink()
    assert "holds no config.json" in refused()
    out.mkdir()
    (out / "something").touch()
    with pytest.raises(UserError, match="exists and is not empty"):
        plan_reverse(folder, out)


def test_full_disk_leaves_no_target(tmp_path, small_disk):
    tiny_model(False, vocabulary=9001).save_pretrained(tmp_path / "model")
    plan = plan_reverse(tmp_path / "model", small_disk.folder / "out")
    assert plan.bytes > small_disk.size
    small_disk.limit()
    with pytest.raises(RunError):
        reverse(plan)
    assert not list(small_disk.folder.iterdir())


def test_files_beside_the_weights(tmp_path):
    tiny_model(False).save_pretrained(tmp_path / "model")
    (tmp_path / "model/tokenizer.json").write_text("{}")
    (tmp_path / "model/chat_template.jinja").write_text("hello")
    reverse(plan_reverse(tmp_path / "model", tmp_path / "out"))
    there = {path.name for path in (tmp_path / "out/actor/huggingface").iterdir()}
    assert there == {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"}
    assert json.loads((tmp_path / "out/manifest.json").read_text())["roles"] == {"actor": 1}


def test_the_job_says_what_it_wrote(tmp_path, capsys):
    tiny_model(True).save_pretrained(tmp_path / "model")
    arguments = [str(tmp_path / "model"), "--out", str(tmp_path / "out"), "--role", "actor"]
    assert main([*arguments, "--dry-run"]) == 0 and not (tmp_path / "out").exists()
    assert capsys.readouterr().out.startswith(f"would write {tmp_path / 'out'}: actor of step 0, 26 tensors, ")
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["reverse"] and report["tensors"] == 26 and (tmp_path / "out/manifest.json").is_file()
