"""Bad input, for every kind of source: refused as the user's (exit 1) before anything is written, all pieces named."""

import json
import math
import os
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from checkpoint_models import on_ranks, run_of, tiny_model
from foreign_cases import refusal, unpacked
from peft import LoraConfig, get_peft_model
from test_foreign_dcp import write_on_two
from transformers import AutoModelForCausalLM

from tests.support.small_disk import SmallDisk
from verl_core.checkpoint.merge import check_contents, merge, plan_merge
from verl_core.checkpoint.merge_verify import chosen_verify
from verl_core.checkpoint.target import new_folder
from verl_core.config.errors import RunError, UserError


@dataclass(frozen=True)
class Source:
    """A checkpoint and the files of its ranks, as a pattern below it."""

    folder: Path
    pattern: str

    def copied(self, to: Path) -> tuple[Path, list[Path]]:
        shutil.copytree(self.folder, to)
        return to, sorted(to.glob(self.pattern))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, two_ranks_run: Path) -> dict[str, Source]:
    root = tmp_path_factory.mktemp("sources")
    on_ranks(2, write_on_two, root / "dcp")
    step = "global_step_3/actor"
    return {
        "rlx": Source(run_of(two_ranks_run, True, torch.float32), f"checkpoints/{step}/weights/*.safetensors"),
        "verl": Source(Path(__file__).parent / "verl_fixtures" / "tied_two_ranks", f"{step}/model_*.pt"),
        "megatron": Source(unpacked("megatron", root / "megatron") / "qwen3", "model/dist_ckpt/*.distcp"),
        "dcp": Source(root / "dcp", "*.distcp"),
        "deepspeed": Source(unpacked("deepspeed", root / "deepspeed") / "zero3_untied", "global_step1/*_states.pt"),
        "peft": Source(write_adapter(root), "adapter_model.safetensors"),
    }


def write_adapter(root: Path) -> Path:
    tiny_model(True).save_pretrained(root / "base")
    model = AutoModelForCausalLM.from_pretrained(root / "base")
    wrapped = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    wrapped.save_pretrained(root / "adapter")
    return root / "adapter"


KINDS = ["rlx", "verl", "megatron", "dcp", "deepspeed", "peft"]
SHARDED = KINDS[:-1]


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def hollow(path: Path) -> None:
    path.write_bytes(b"")


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("harm", [Path.unlink, half, hollow, link_to_nothing], ids=lambda harm: harm.__name__)
def test_every_harmed_shard_is_named(sources, tmp_path, caplog, kind, harm):
    folder, files = sources[kind].copied(tmp_path / "source")
    harmed = files if kind != "deepspeed" else files[:-1]  # without one of its files nobody knows what it is
    for path in harmed:
        harm(path)
    said = refusal(folder, tmp_path / "out")
    assert all(path.name in said for path in harmed), said
    assert not caplog.text, "told once"


@pytest.mark.parametrize("kind", SHARDED)
def test_missing_and_cut_shards_are_named_together(sources, tmp_path, kind):
    folder, files = sources[kind].copied(tmp_path / "source")
    files[0].unlink()
    half(files[1])
    said = refusal(folder, tmp_path / "out")
    assert f"{files[0].name} is missing" in said and files[1].name in said.replace(files[0].name, ""), said


def other_ranks_rlx(folder: Path, files: list[Path], tmp_path: Path) -> str:
    shutil.copy(files[1], files[1].with_name("shard-00003-model-00001-of-00001.safetensors"))
    return "shard-00003-model-00001-of-00001.safetensors is not of this checkpoint"


def other_ranks_verl(folder: Path, files: list[Path], tmp_path: Path) -> str:
    shutil.copy(files[1], files[1].with_name("model_world_size_4_rank_3.pt"))
    return "says world size 2, there are files of world size 2, 4"


def other_ranks_dcp(folder: Path, files: list[Path], tmp_path: Path) -> str:
    write_alone(tmp_path / "alone")
    shutil.copy(tmp_path / "alone" / files[0].name, files[0])
    return f"more of what .metadata says to be in {files[0].name})"


def other_ranks_deepspeed(folder: Path, files: list[Path], tmp_path: Path) -> str:
    beyond = files[0].with_name(files[0].name.replace("rank_0_", "rank_2_"))
    shutil.copy(files[0], beyond)
    return f"{beyond.name} is of a rank beyond the 2 that there are"


def write_alone(folder: Path) -> None:
    on_ranks(1, write_on_two, folder)


OTHER_RANKS = {
    "rlx": other_ranks_rlx, "verl": other_ranks_verl, "dcp": other_ranks_dcp, "deepspeed": other_ranks_deepspeed,
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHER_RANKS)
def test_shards_of_another_world_size_are_named(sources, tmp_path, kind):
    """Megatron's shards are those of torch.distributed, an adapter of peft has none."""
    folder, files = sources[kind].copied(tmp_path / "source")
    says = OTHER_RANKS[kind](folder, files, tmp_path)
    assert says in (said := refusal(folder, tmp_path / "out")), said


def other_step_rlx(files: list[Path]) -> str:
    weights = files[0].read_bytes()
    files[0].write_bytes(weights[:-4] + bytes(4))
    return f"{files[0].name} is damaged (checksum differs)"


def other_step_verl(files: list[Path]) -> str:
    extra = files[1].with_name(files[1].name.replace("model", "extra_state"))
    torch.save({"lr_scheduler": {"last_epoch": 9}}, extra)
    return f"its files are of several steps: {extra.name.replace('rank_1', 'rank_0')} of 3, {extra.name} of 9"


def other_step_deepspeed(files: list[Path]) -> str:
    state = torch.load(files[2], weights_only=False)
    torch.save(state | {"global_steps": 9}, files[2])
    return "its files are of several steps: rank 0 of 1, rank 1 of 9"


@pytest.mark.parametrize(
    ("kind", "replace"), [("rlx", other_step_rlx), ("verl", other_step_verl), ("deepspeed", other_step_deepspeed)]
)
def test_shards_of_another_step_are_named(sources, tmp_path, kind, replace):
    """The others' files do not say their step."""
    folder, files = sources[kind].copied(tmp_path / "source")
    says = replace(files)
    with pytest.raises(UserError) as refused:
        check_contents(plan_merge(folder, tmp_path / "out"))
    assert says in refused.value.message and not list(tmp_path.glob("*out*"))


class Trap:
    """Pickles to what makes a folder."""

    def __init__(self, place: Path):
        self.place = place

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.place),)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("verl", "global_step_3/actor/model_world_size_2_rank_1.pt"),
        ("megatron", "model/dist_ckpt/.metadata"),
        ("dcp", ".metadata"),
        ("deepspeed", "global_step1/zero_pp_rank_1_mp_rank_00_model_states.pt"),
        ("deepspeed", "global_step1/zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        ("peft", "adapter_model.bin"),
    ],
)
def test_a_poisoned_pickle_is_refused_and_not_executed(sources, tmp_path, kind, name):
    folder, _ = sources[kind].copied(tmp_path / "source")
    poisoned = folder / name
    if kind == "peft":
        (folder / "adapter_model.safetensors").unlink()
    if poisoned.name == ".metadata":
        poisoned.write_bytes(pickle.dumps(Trap(tmp_path / "trap")))
    else:
        torch.save(Trap(tmp_path / "trap"), poisoned)
    said = refusal(folder, tmp_path / "out")
    assert poisoned.name in said and "posix.mkdir" in said and not (tmp_path / "trap").exists()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("rlx", "checkpoints/global_step_3/actor/weights/pytorch_model.bin"),
        ("verl", "global_step_3/actor/extra_state_world_size_2_rank_0.pt"),
        ("verl", "global_step_3/actor/optim_world_size_2_rank_0.pt"),
        ("megatron", "model/dist_ckpt/common.pt"),
        ("peft", "adapter_model.bin"),
    ],
)
def test_pickles_that_no_merge_needs_are_not_executed(sources, tmp_path, kind, name):
    folder, _ = sources[kind].copied(tmp_path / "source")
    torch.save(Trap(tmp_path / "trap"), folder / name)
    merge(plan_merge(folder, tmp_path / "out"))
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_behind_a_link_is_that_folder(sources, tmp_path, kind):
    (tmp_path / "link").symlink_to(sources[kind].folder.absolute())
    through, itself = (plan_merge(f, tmp_path / "out").report() for f in (tmp_path / "link", sources[kind].folder))
    assert through == itself


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder where nobody may write."""
    (tmp_path / "read_only").mkdir()
    (tmp_path / "read_only").chmod(0o555)  # enough where nothing can be mounted, and nothing to root
    disk = SmallDisk(tmp_path / "read_only", 4096, "ro")
    yield disk.folder
    disk.close()


def test_targets_that_cannot_be_made_are_refused(sources, tmp_path, read_only, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "nowhere").symlink_to("absent")
    monkeypatch.chdir(tmp_path / "empty")
    targets = {
        tmp_path / "full": "exists and is not empty",
        tmp_path / "file": "exists and is not empty",
        tmp_path / "file" / "out": "file is not a folder that can be written",
        tmp_path / "link": "is a link",
        tmp_path / "nowhere": "is a link",
        tmp_path / "nowhere" / "out": "nowhere is not a folder that can be written",
        read_only / "out": "is not a folder that can be written",
        tmp_path / ("n" * 300): "File name too long",
        tmp_path / ("n" * 250): "File name too long",
        Path(): "is not the name of a folder to make",
        Path("/"): "is not the name of a folder to make",
    }
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.exists()}
    for kind, source in sources.items():
        for target, says in targets.items():
            with pytest.raises(UserError) as refused:
                plan_merge(source.folder, target)
            assert says in refused.value.message, (kind, target)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.exists()}


def test_a_target_in_a_checkpoint_is_refused(sources, tmp_path):
    """It would be removed with that one when the run goes on."""
    folder, files = sources["rlx"].copied(tmp_path / "source")
    step = files[0].parents[2]
    (tmp_path / "link").symlink_to(step)
    for target in (step / "merged", step / "actor" / "deep" / "out", tmp_path / "link" / "out"):
        assert f"{target} lies in the checkpoint {step}" in refusal(folder, target)
    merge(plan_merge(folder, step.parent / "merged"), how="none")


def test_a_target_where_a_disk_is_mounted_is_refused(sources, read_only):
    with pytest.raises(UserError, match="is where a disk is mounted") as refused:
        plan_merge(sources["verl"].folder, read_only)
    assert str(read_only / "model") in refused.value.hint


@pytest.mark.parametrize("told", [{"architectures": None}, {"architectures": ["NamedByAnotherVersion"]}])
def test_a_config_without_a_known_architecture_is_read_by_its_model_type(sources, tmp_path, told):
    """Case K11."""
    folder, files = sources["verl"].copied(tmp_path / "source")
    config = files[0].parent / "huggingface" / "config.json"
    written = json.loads(config.read_text())
    config.write_text(json.dumps(written | told))
    merge(plan_merge(folder, tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]
    config.write_text(json.dumps(written | told | {"model_type": "qwen99"}))
    assert "model type `qwen99`" in refusal(folder, tmp_path / "other")
    config.write_text(json.dumps(written | told | {"model_type": "qwen2_vl"}))
    assert "Qwen2VLConfig" in refusal(folder, tmp_path / "other")


def test_of_two_merges_to_one_target_the_second_is_refused_and_the_first_ends(sources, tmp_path):
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "model.safetensors").write_text("of a process that was killed")
    plan = plan_merge(sources["verl"].folder, tmp_path / "out")
    with new_folder(tmp_path / "out", 1) as folder:
        assert not list(folder.iterdir())
        with pytest.raises(UserError, match=r"another rlx is writing .*out"):
            merge(plan)
        (folder / "first").write_text("")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["first"]
    assert not list(tmp_path.glob(".out*"))


def test_of_two_merges_that_begin_at_once_one_is_refused_and_the_other_ends(tmp_path, monkeypatch):
    """The second comes after the first has looked whether somebody writes there."""

    def begin_another(*_: object) -> None:
        monkeypatch.undo()
        with pytest.raises(UserError, match=r"another rlx is writing .*out"), new_folder(tmp_path / "out", 1):
            pass

    monkeypatch.setattr("verl_core.checkpoint.target._empty", begin_another)
    with new_folder(tmp_path / "out", 1) as folder:
        (folder / "first").write_text("")
        (tmp_path / "late").mkdir()
        (tmp_path / "late" / "file").touch()
        with pytest.raises(RunError, match="late: another has put something there"), new_folder(tmp_path / "late", 1):
            pass
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["first"]
    assert not list(tmp_path.glob(".*"))


def test_a_target_for_which_there_is_no_room_leaves_nothing(tmp_path):
    with pytest.raises(RunError, match=r"deep/out needs .* missing\)"), new_folder(tmp_path / "deep" / "out", 1 << 60):
        pass
    assert not list(tmp_path.iterdir())


def test_what_a_killed_merge_has_left_is_room_for_the_next(tmp_path, monkeypatch):
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "model.safetensors").write_bytes(bytes(1000))
    monkeypatch.setattr("verl_core.checkpoint.target._free_bytes", lambda out: 500)
    with pytest.raises(RunError, match=r"has 1,500 free \(1 missing\)"), new_folder(tmp_path / "out", 1501):
        pass
    with new_folder(tmp_path / "out", 1500) as folder:
        assert not list(folder.iterdir())


def test_a_link_in_the_place_of_the_temporary_folder_is_not_followed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / ".out.partial").symlink_to("kept")
    with pytest.raises(RunError, match="cannot write"), new_folder(tmp_path / "out", 1):
        pass
    assert (tmp_path / "kept" / "file").exists() and not (tmp_path / "out").exists()


def test_an_alpha_that_nothing_needs_is_refused(sources, tmp_path):
    out = tmp_path / "out"
    for kind, alpha, says in (
        ("rlx", 8, "holds a whole model"), ("verl", 8, "holds a whole model"), ("dcp", 8, "holds a whole model"),
        ("peft", 8, "says 16"), ("peft", -16, "is no alpha"), ("peft", math.nan, "is no alpha"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"--lora-alpha .*{says}"):
            plan_merge(sources[kind].folder, out, lora_alpha=alpha)
    alone = plan_merge(sources["peft"].folder, out, lora="adapter", lora_alpha=16)
    with pytest.raises(UserError, match="an adapter without its base has none"):
        chosen_verify(alone.content, "logits")
