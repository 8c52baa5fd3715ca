"""Checkpoints of a real DeepSpeed run with ZeRO (fixtures/deepspeed.tar.xz) as a source of a merge."""

import shutil
from pathlib import Path

import pytest
import torch
from foreign_cases import TRUTH, assert_loads_whole, assert_same_tensors, cut, merged, refusal, unpacked
from safetensors.torch import load_file

from verl_core.checkpoint.foreign.deepspeed import DeepSpeedSource
from verl_core.checkpoint.foreign.flat_partitions import Vector, one_after_the_other, split_by_parameter
from verl_core.checkpoint.foreign.source import SourceOptions
from verl_core.checkpoint.foreign.torch_file import TorchFile
from verl_core.checkpoint.merge import plan_merge

STEP = "global_step1"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return unpacked("deepspeed", tmp_path / "runs")


@pytest.mark.parametrize("case", ["zero3_tied", "zero3_untied", "zero2_tied"])
def test_float32_weights_of_the_optimizer(runs, tmp_path, case):
    truth = load_file(runs / case / TRUTH)
    frozen = truth.pop("model.norm.weight")  # kept in the dtype of training
    got = merged(runs / case, tmp_path / "out")
    assert torch.equal(got.pop("model.norm.weight").float(), frozen.float())
    assert_same_tensors(got, truth)
    assert_loads_whole(tmp_path / "out")
    report = plan_merge(runs / case / STEP, tmp_path / "other").report()
    assert report["step"] == 1 and report["source"] == f"DeepSpeed ZeRO-{case[4]}, 2 ranks"


def test_rows_read_one_by_one(runs):
    source = DeepSpeedSource(runs / "zero3_tied" / STEP, SourceOptions())
    truth = load_file(runs / "zero3_tied" / TRUTH)
    for name, value in truth.items():
        rows = [source.rows(name, row, row + 1) for row in range(value.shape[0])]
        assert torch.equal(torch.cat(rows), value.to(rows[0].dtype))


@pytest.mark.parametrize("rank", [0, 1])
def test_every_missing_file_is_named(runs, tmp_path, rank):
    for kind in ("model", "optim"):
        for path in (runs / "zero3_untied" / STEP).glob(f"*rank_{rank}_mp*_{kind}_states.pt"):
            path.unlink()
    said = refusal(runs / "zero3_untied", tmp_path / "out")
    assert all(f"zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt is missing" in said for kind in ("model", "optim"))


def test_every_cut_file_is_named(runs, tmp_path):
    paths = sorted((runs / "zero2_tied" / STEP).glob("bf16_*_optim_states.pt"))
    for path in paths:
        cut(path, 2000)
    said = refusal(runs / "zero2_tied", tmp_path / "out")
    assert all(f"{path.name} is truncated" in said for path in paths) and len(paths) == 2


def test_files_of_another_run_are_named(runs, tmp_path):
    other = runs / "zero3_tied" / STEP
    for path in (runs / "zero2_tied" / STEP).glob("*_optim_states.pt"):
        shutil.copy(path, other)
    shutil.copy(runs / "zero3_untied" / STEP / "zero_pp_rank_0_mp_rank_00_model_states.pt", other)
    assert "has no param_shapes" not in (said := refusal(runs / "zero3_tied", tmp_path / "out"))
    assert "is missing" in said or "values, its parameters take" in said


def test_vectors_of_another_length_are_named(runs, tmp_path):
    name = "zero_pp_rank_0_mp_rank_00_model_states.pt"
    shutil.copy(runs / "zero3_untied" / STEP / name, runs / "zero3_tied" / STEP / name)
    assert "values, its parameters take" in refusal(runs / "zero3_tied", tmp_path / "out")


@pytest.mark.parametrize("said", [{"partition_count": 0}, {"partition_count": "two"}, {"zero_stage": None}])
def test_files_that_say_nonsense_are_told(tmp_path, said):
    state = {"zero_stage": 3, "partition_count": 1, "fp32_flat_groups": []} | said
    model = {"param_shapes": [{"a": (2, 2)}], "module": {}, "buffer_names": []}
    (tmp_path / STEP).mkdir()
    torch.save({"optimizer_state_dict": state}, tmp_path / STEP / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    torch.save(model, tmp_path / STEP / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    assert "of a form that is not known" in refusal(tmp_path / STEP, tmp_path / "out")


def test_latest_that_names_nothing(runs, tmp_path):
    (runs / "zero3_tied" / "latest").write_text("global_step9")
    assert "names 'global_step9', which holds no files" in refusal(runs / "zero3_tied", tmp_path / "out")


def test_split_models_are_refused(runs, tmp_path):
    folder = runs / "zero2_tied" / STEP
    shutil.copy(folder / "mp_rank_00_model_states.pt", folder / "mp_rank_01_model_states.pt")
    assert "model parallelism" in refusal(runs / "zero2_tied", tmp_path / "out")


def test_program_files_beside_the_config_stay_there(runs, tmp_path):
    """transformers' Trainer leaves the config beside DeepSpeed's own script."""
    for name in ("zero_to_fp32.py", "trainer_state.json"):
        (runs / "zero3_tied" / name).write_text("{}")
    merged(runs / "zero3_tied", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_layouts_by_hand(tmp_path, ranks):
    """Shapes that no number of ranks divides, and vectors of several parts."""
    shapes = {"a": torch.Size((3, 5)), "b": torch.Size((7,)), "c": torch.Size(()), "d": torch.Size((1, 2, 3))}
    values = {name: torch.randn(shape) for name, shape in shapes.items()}
    shares: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    for value in values.values():
        size = -(-value.numel() // ranks)
        padded = torch.cat([value.reshape(-1), torch.zeros(size * ranks - value.numel())])
        for rank, part in enumerate(padded.split(size)):
            shares[rank].append(part.clone())
    torch.save([shares, [torch.cat([v.reshape(-1) for v in values.values()])]], tmp_path / "file.pt")
    split, (joined,) = TorchFile(tmp_path / "file.pt").value
    by_parameter, used = split_by_parameter(shapes, [Vector(parts) for parts in split], torch.float32)
    assert used == sum(len(part) for part in shares[0])
    in_order, used = one_after_the_other(shapes, Vector([joined]), torch.float32)
    assert used == sum(shape.numel() for shape in shapes.values())
    for name, value in values.items():
        assert torch.equal(by_parameter[name].rows(0, 9), value) and torch.equal(in_order[name].rows(0, 9), value)
        if value.dim():
            assert torch.equal(by_parameter[name].rows(1, 2), value[1:2])
