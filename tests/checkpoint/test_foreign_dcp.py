"""Folders of torch.distributed.checkpoint as a source of a merge, written by torch itself, on one rank and on two."""

import io
import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoint_models import engine_state, on_ranks, sharded, tiny_model
from foreign_cases import assert_loads_whole, assert_same_tensors, cut, merged, refusal

from verl_core.checkpoint.foreign.dcp import DcpSource
from verl_core.checkpoint.foreign.dcp_files import DcpFiles
from verl_core.checkpoint.foreign.prefixes import without_prefix
from verl_core.checkpoint.foreign.source import SourceOptions
from verl_core.config.errors import UserError


def saved(folder: Path, state: dict[str, Any]) -> Path:
    """`state` as dcp.save writes it in one process, and the tiny model's config."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=str(folder))
    tiny_model(False).config.to_json_file(folder / "config.json")
    return folder


def stored(model: torch.nn.Module) -> dict[str, Any]:
    return {"model": model.state_dict(), "optim": {"state": {"exp_avg": torch.ones(3)}}, "epoch": 3, "words": ["a"]}


def write_on_two(folder: Path) -> None:
    state = sharded(engine_state(tiny_model(True, torch.bfloat16)))
    dcp.save({"app": state.weights}, checkpoint_id=str(folder))
    if dist.get_rank() == 0:
        tiny_model(True).config.to_json_file(folder / "config.json")


def test_two_ranks_rows_columns_and_replicas(tmp_path):
    on_ranks(2, write_on_two, tmp_path / "two")
    truth = tiny_model(True, torch.bfloat16).state_dict()
    del truth["lm_head.weight"]  # tied
    assert len(list((tmp_path / "two").glob("*.distcp"))) == 2
    assert_same_tensors(merged(tmp_path / "two", tmp_path / "out"), truth)
    assert_loads_whole(tmp_path / "out")


def test_prefix_is_stripped_and_the_optimizer_left_out(tmp_path):
    model = tiny_model(False)
    assert_same_tensors(merged(saved(tmp_path / "one", stored(model)), tmp_path / "out"), model.state_dict())


def test_config_of_the_base_where_there_is_none(tmp_path):
    model = tiny_model(False)
    folder = saved(tmp_path / "deep" / "one", stored(model))
    tiny_model(False, seed=5).save_pretrained(tmp_path / "base")
    (folder / "config.json").unlink()
    assert "no config.json" in refusal(folder, tmp_path / "out")
    assert_same_tensors(merged(folder, tmp_path / "out", base=str(tmp_path / "base")), model.state_dict())


def test_rows_read_one_by_one(tmp_path):
    model = tiny_model(False)
    source = DcpSource(saved(tmp_path / "one", stored(model)), SourceOptions())
    for name, value in model.state_dict().items():
        rows = [source.rows(name, row, row + 1) for row in range(value.shape[0])]
        assert torch.equal(torch.cat(rows), value)


def test_every_missing_and_cut_file_is_named(tmp_path):
    folder = saved(tmp_path / "one", stored(tiny_model(False)))
    (file,) = folder.glob("*.distcp")
    cut(file, file.stat().st_size // 2)
    assert f"{file.name} has " in (said := refusal(folder, tmp_path / "out")) and " of at least " in said
    file.unlink()
    assert f"{file.name} is missing" in refusal(folder, tmp_path / "out")
    (folder / ".metadata").write_bytes((folder / ".metadata").read_bytes()[:-30])
    assert ".metadata" in refusal(folder, tmp_path / "out")


def test_bytes_that_are_no_tensor_are_named(tmp_path):
    folder = saved(tmp_path / "one", stored(tiny_model(False)))
    (file,) = folder.glob("*.distcp")
    file.write_bytes(bytes(file.stat().st_size))
    said = refusal(folder, tmp_path / "out")
    assert "model.model.embed_tokens.weight: " in said and "(and 26 more of what .metadata says to be in" in said


def test_missing_and_unknown_tensors_are_named(tmp_path):
    state = stored(tiny_model(False))
    state["model"]["surplus.weight"] = state["model"].pop("model.norm.weight")
    said = refusal(saved(tmp_path / "one", state), tmp_path / "out")
    assert "model.norm.weight is missing" in said and "surplus.weight is unknown" in said


class Poison:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.target,)

    def __init__(self, target: str):
        self.target = target


def test_poison_is_refused_in_the_metadata_and_in_a_box(tmp_path):
    folder, trap = saved(tmp_path / "one", stored(tiny_model(False))), tmp_path / "trap"
    (box,) = DcpFiles(folder).tensors["model.lm_head.weight"].boxes
    poisoned = io.BytesIO()
    torch.save(Poison(str(trap)), poisoned)
    whole = bytearray((folder / box.file).read_bytes())
    whole[box.start : box.start + box.length] = poisoned.getvalue().ljust(box.length, b"\0")
    (folder / box.file).write_bytes(whole)
    assert "model.lm_head.weight: " in (said := refusal(folder, tmp_path / "out")) and "posix.mkdir" in said
    (folder / ".metadata").write_bytes(pickle.dumps(Poison(str(trap))))
    assert "posix.mkdir" in refusal(folder, tmp_path / "out")
    assert not trap.exists()


def test_a_file_outside_the_folder_is_refused(tmp_path):
    folder = saved(tmp_path / "one", stored(tiny_model(False)))
    (file,) = folder.glob("*.distcp")
    path = folder / ".metadata"
    path.write_bytes(path.read_bytes().replace(file.name.encode(), b"../" + file.name[3:].encode()))
    assert "a file named '../" in refusal(folder, tmp_path / "out")


def test_two_models_under_two_prefixes():
    with pytest.raises(UserError, match=r"two models, under 'actor\.' and 'ref\.'"):
        without_prefix(["actor.a.weight", "ref.a.weight"], ["a.weight"], "x")
    assert without_prefix(["a.weight", "ref.b"], ["a.weight"], "x") == {"a.weight": "a.weight", "ref.b": "ref.b"}


def test_code_beside_the_config_does_not_run(tmp_path):
    folder = saved(tmp_path / "one", stored(tiny_model(False)))
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "own"}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "own.Own"}}))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'trap')!r}, 'w')")
    assert "own.py" in refusal(folder, tmp_path / "out")
    assert not (tmp_path / "trap").exists()
