"""A merged folder loads in plain transformers and computes the same; faults are named before anything is written."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_models import CASES, run_of, save_run, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification, PreTrainedModel

from verl_core.checkpoint import CheckpointStore, save_huggingface_files, save_role
from verl_core.checkpoint.merge import check_contents, merge, plan_merge
from verl_core.checkpoint.safetensors_stream import TensorPlan, file_plan, write_file
from verl_core.checkpoint.shards import Shards
from verl_core.checkpoint.weights import blocks
from verl_core.config.errors import RunError, UserError
from verl_core.training.protocol import EngineState

IDS = torch.arange(1, 25)[None]


def loaded(folder: Path, auto=AutoModelForCausalLM) -> PreTrainedModel:
    """The merged model; fails on any missing, unexpected or mismatched key."""
    model, report = auto.from_pretrained(folder, output_loading_info=True)
    assert {key: len(value) for key, value in report.items()} == dict.fromkeys(report, 0)
    return model.eval()


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    return model.eval()(IDS).logits


@pytest.fixture
def step(tmp_path: Path) -> Path:
    return save_run(tmp_path / "run", tiny_model(False))


@pytest.mark.parametrize(("tied", "dtype"), CASES)
@pytest.mark.parametrize("max_file_bytes", [1 << 30, 20_000])
def test_written_on_two_ranks(two_ranks_run, tmp_path, tied, dtype, max_file_bytes):
    """Case K2."""
    plan = plan_merge(run_of(two_ranks_run, tied, dtype), tmp_path / "out")
    check_contents(plan)
    merge(plan, max_file_bytes=max_file_bytes)
    model = loaded(tmp_path / "out")
    assert model.dtype == dtype
    assert torch.equal(logits(model), logits(tiny_model(tied, dtype)))
    assert (model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()) == tied
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    stored = {name for file in files for name in load_file(file)}
    assert ("lm_head.weight" in stored) != tied
    assert (tmp_path / "out/model.safetensors.index.json").exists() == (len(files) > 1) == (max_file_bytes == 20_000)
    assert plan.report() == {
        "out": str(tmp_path / "out"),
        "tensors": len(stored),
        "bytes": sum(tensor.nbytes for file in files for tensor in load_file(file).values()),
        "dtype": str(dtype).removeprefix("torch."),
        "step": 3,
        "role": "actor",
    }


def test_written_by_one_process(tmp_path):
    """Case K8."""
    save_run(tmp_path / "run", tiny_model(True))
    (tmp_path / "out").mkdir()  # empty is fine
    merge(plan_merge(tmp_path / "run" / "checkpoints", tmp_path / "out"))
    assert torch.equal(logits(loaded(tmp_path / "out")), logits(tiny_model(True)))


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float32, "fp32")])
def test_dtype(step, tmp_path, dtype, name):
    merge(plan_merge(step, tmp_path / "out", dtype=name))
    model = loaded(tmp_path / "out")
    assert {p.dtype for p in model.parameters()} == {dtype}
    want = tiny_model(False).to(dtype).state_dict()
    assert all(torch.equal(tensor, want[key]) for key, tensor in model.state_dict().items())


def test_tied_weights_stored_twice_become_one(tmp_path):
    model = tiny_model(True)
    state = EngineState({name: tensor.clone() for name, tensor in model.state_dict().items()})
    save_with(tmp_path / "run", model, state)
    merge(plan_merge(tmp_path / "run", tmp_path / "out"))
    assert "lm_head.weight" not in load_file(tmp_path / "out/model.safetensors")
    loaded(tmp_path / "out")
    state.weights["lm_head.weight"][0, 0] += 1
    save_with(tmp_path / "differs", model, state)
    with pytest.raises(UserError, match=r"lm_head.weight is tied to .* but their values differ"):
        plan_merge(tmp_path / "differs", tmp_path / "out2")


def save_with(run: Path, model: PreTrainedModel, state: EngineState, role: str = "actor") -> None:
    with CheckpointStore(run / "checkpoints").saving(1) as folder:
        save_role(folder / role, state)
        save_huggingface_files(folder / role, config=model.config)


def test_critic(tmp_path):
    body = tiny_model(True)
    config = body.config.__class__(**body.config.to_dict())
    config.num_labels = 1
    torch.manual_seed(3)
    critic = AutoModelForTokenClassification.from_config(config)
    save_with(
        tmp_path / "run", body, EngineState(dict(critic.state_dict())), role="critic"
    )  # the language model's config
    with pytest.raises(UserError, match="has no role 'actor', it has critic"):
        plan_merge(tmp_path / "run", tmp_path / "out")
    merge(plan_merge(tmp_path / "run", tmp_path / "out", role="critic"))
    model = loaded(tmp_path / "out", AutoModelForTokenClassification)
    assert model.score.weight.shape == (1, 32)
    assert torch.equal(logits(model), logits(critic))


@pytest.mark.parametrize("kind", ["qwen2_moe", "mixtral"])
def test_experts_are_written_as_published(tmp_path, kind):
    """Case K9."""
    config = AutoConfig.for_model(
        kind, vocab_size=97, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        shared_expert_intermediate_size=16, num_attention_heads=4, num_key_value_heads=2, num_experts_per_tok=2,
        num_experts=4, num_local_experts=4,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    save_run(tmp_path / "run", model)
    merge(plan_merge(tmp_path / "run", tmp_path / "out"))
    model.save_pretrained(tmp_path / "reference")
    got, want = (load_file(tmp_path / folder / "model.safetensors") for folder in ("out", "reference"))
    assert got.keys() == want.keys() and any(".experts.3." in name for name in got)
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert torch.equal(logits(loaded(tmp_path / "out")), logits(model))


def test_target_that_holds_something_is_left_alone(step, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("x")
    with pytest.raises(UserError, match="out exists and is not empty"):
        plan_merge(step, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_base_that_is_not_there_is_told_by_its_option(step, tmp_path):
    with pytest.raises(UserError, match=r"--base: .*nowhere"):
        plan_merge(step, tmp_path / "out", base=str(tmp_path / "nowhere"))


def test_every_missing_and_cut_file_is_named(two_ranks_run, tmp_path):
    run = shutil.copytree(run_of(two_ranks_run, False, torch.float32), tmp_path / "run")
    folder = run / "checkpoints/global_step_3"
    first, second = sorted((folder / "actor/weights").glob("*.safetensors"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-10])
    for source in (run, folder):
        with pytest.raises(UserError) as error:
            plan_merge(source, tmp_path / "out")
        assert f"{first.name} is missing" in error.value.message
        assert (
            f"{second.name} has {second.stat().st_size:,} of {second.stat().st_size + 10:,} bytes"
            in error.value.message
        )
    assert not (tmp_path / "out").exists()


def test_optimizer_is_not_needed(step, tmp_path):
    shutil.rmtree(step / "actor/optimizer")
    merge(plan_merge(step, tmp_path / "out"))
    loaded(tmp_path / "out")


def test_damage_that_keeps_the_size_is_found(step, tmp_path):
    file = next((step / "actor/weights").glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    read = []
    plan = plan_merge(step, tmp_path / "out")
    with pytest.raises(UserError, match=rf"{file.name} is damaged"):
        check_contents(plan, read.append)
    assert sum(read) == plan.checked_bytes


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": 3}, "model.layers.2.self_attn.q_proj.weight is missing"),
        ({"num_hidden_layers": 1}, "model.layers.1.mlp.up_proj.weight is unknown to Qwen2ForCausalLM"),
        ({"vocab_size": 98}, "lm_head.weight is [97, 32], the config says [98, 32]"),
    ],
)
def test_weights_of_another_architecture(tmp_path, change, says):
    model = tiny_model(False)
    for key, value in change.items():
        setattr(model.config, key, value)
    if "num_hidden_layers" in change:
        model.config.layer_types = ["full_attention"] * model.config.num_hidden_layers
    save_run(tmp_path / "run", model)
    with pytest.raises(UserError) as error:
        plan_merge(tmp_path / "run", tmp_path / "out")
    assert says in error.value.message


def test_full_disk_leaves_no_target(small_disk, tmp_path):
    save_run(tmp_path / "run", tiny_model(False, vocabulary=20_011))  # 5 MB on 1 MiB
    small_disk.limit()
    with pytest.raises(RunError, match=r"needs 5,.* bytes, its disk has|File too large"):
        merge(plan_merge(tmp_path / "run", small_disk.folder / "out"))
    assert list(small_disk.folder.iterdir()) == []


def test_disk_full_half_way_leaves_no_target(small_disk, tmp_path, monkeypatch):
    monkeypatch.setattr("verl_core.checkpoint.target.check_space", lambda *_: None)  # another process took the room
    save_run(tmp_path / "run", tiny_model(False, vocabulary=20_011))
    small_disk.limit()
    with pytest.raises(RunError, match=r"cannot write .*(its disk is full, [\d,]+ bytes are missing|File too large)"):
        merge(plan_merge(tmp_path / "run", small_disk.folder / "out"))
    assert list(small_disk.folder.iterdir()) == []


@pytest.mark.parametrize("block_bytes", [1, 130, 1000, 1 << 20])
def test_blocks_join_to_the_tensor(two_ranks_run, block_bytes):
    shards = Shards(run_of(two_ranks_run, False, torch.bfloat16) / "checkpoints/global_step_3/actor/weights")
    for name, tensor in tiny_model(False, torch.bfloat16).state_dict().items():
        assert torch.equal(torch.cat(list(blocks(shards, name, block_bytes))), tensor), name


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64]),
            st.lists(st.integers(0, 5), max_size=3),
        ),
        max_size=6,
    )
)
def test_streamed_file_is_what_the_library_reads(tmp_path_factory, kinds):
    tensors = {
        f"t{i}": (torch.arange(torch.Size(shape).numel()) % 3).to(dtype).reshape(shape)
        for i, (dtype, shape) in enumerate(kinds)
    }
    path = tmp_path_factory.mktemp("stream") / "model.safetensors"
    plans = [TensorPlan(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
    write_file(path, plans, lambda plan: iter([tensors[plan.name]]))
    got = load_file(path)
    assert got.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor)
    save_file(tensors, path.with_suffix(".reference"))
    assert path.stat().st_size - path.with_suffix(".reference").stat().st_size in range(-64, 65)


def test_files_keep_within_their_limit():
    tensors = [TensorPlan(f"t{i}", torch.float32, torch.Size([n])) for i, n in enumerate([10, 10, 10, 100, 10])]
    files = file_plan(tensors, max_file_bytes=80)
    assert [[t.name for t in group] for group in files.values()] == [["t0", "t1"], ["t2"], ["t3"], ["t4"]]
    assert next(iter(files)) == "model-00001-of-00004.safetensors"


def test_config_names_what_was_written(step, tmp_path):
    merge(plan_merge(step, tmp_path / "out", dtype="bf16"))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["dtype"] == "bfloat16" and config["architectures"] == ["Qwen2ForCausalLM"]
    assert (tmp_path / "out/generation_config.json").is_file()
