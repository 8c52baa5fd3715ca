"""A state written on one number of ranks is read on another, bit by bit, whatever the sharding."""

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from checkpoint_models import (
    CASES,
    engine_state,
    on_ranks,
    run_of,
    save_run,
    sharded,
    small_state,
    tiny_model,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from verl_core.checkpoint import CheckpointStore, load_role, save_role, state_bytes
from verl_core.config.errors import RunError, UserError
from verl_core.training.protocol import EngineState


def actor(root: Path, tied: bool, dtype: torch.dtype) -> Path:
    return run_of(root, tied, dtype) / "checkpoints" / "global_step_3" / "actor"


def assert_equal(got: EngineState, want: EngineState) -> None:
    assert got.scalars == want.scalars
    for got_part, want_part in ((got.weights, want.weights), (got.optimizer, want.optimizer)):
        assert got_part.keys() == want_part.keys()
        for name, tensor in want_part.items():
            value = got_part[name]
            value = value.full_tensor() if isinstance(value, DTensor) else value
            assert value.dtype == tensor.dtype and torch.equal(value, tensor), name


def read_on_two(*roots: Path) -> None:
    for root, (tied, dtype) in product(roots, CASES):
        fresh = sharded(engine_state(tiny_model(tied, dtype, seed=5), seed=6))
        fresh.optimizer.clear()  # an engine that has not stepped yet
        got = load_role(actor(root, tied, dtype), fresh)
        assert_equal(got, engine_state(tiny_model(tied, dtype)))
        assert isinstance(got.optimizer["exp_avg/model.embed_tokens.weight"], DTensor), "moments are sharded as weights"
    for root in roots:
        like = EngineState({name: torch.zeros_like(tensor) for name, tensor in small_state().weights.items()})
        like.weights["one"] = distribute_tensor(like.weights["one"], init_device_mesh("cpu", (2,)), [Shard(0)])
        assert_equal(load_role(root / "small", like), small_state())


def fill_disk_on_two(folder: Path) -> None:
    with pytest.raises(RunError, match=r"could not write .*(No space left|File too large)"):
        save_role(folder / "actor", sharded(EngineState({"big": torch.zeros(1024, 1024)})))


@pytest.mark.parametrize(("tied", "dtype"), CASES)
def test_two_ranks_to_one(two_ranks_run, tied, dtype):
    folder = actor(two_ranks_run, tied, dtype)
    model = tiny_model(tied, dtype, seed=5)
    assert_equal(load_role(folder, EngineState(dict(model.state_dict()))), engine_state(tiny_model(tied, dtype)))
    assert torch.equal(model.lm_head.weight, tiny_model(tied, dtype).lm_head.weight), "filled in place"
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_two_ranks_to_one_small_tensors(two_ranks_run):
    like = EngineState({name: torch.zeros_like(tensor) for name, tensor in small_state().weights.items()})
    assert_equal(load_role(two_ranks_run / "small", like), small_state())


def test_one_rank_and_two_to_two(two_ranks_run, tmp_path):
    for tied, dtype in CASES:
        save_run(run_of(tmp_path, tied, dtype), tiny_model(tied, dtype))
    save_role(tmp_path / "small", small_state())
    on_ranks(2, read_on_two, tmp_path, two_ranks_run)


def read_and_write_on_four(source: Path, root: Path) -> None:
    read_tied(source)
    state = sharded(engine_state(tiny_model(True)))
    save_role(run_of(root, True, torch.float32) / "checkpoints/global_step_3/actor", state)


def read_tied(root: Path) -> None:
    fresh = sharded(engine_state(tiny_model(True, seed=5), seed=6))
    assert_equal(load_role(actor(root, True, torch.float32), fresh), engine_state(tiny_model(True)))


def test_two_ranks_to_four_to_two_and_one(two_ranks_run, tmp_path):
    """Cases S2, S3: what a rank wrote is nobody's share."""
    on_ranks(4, read_and_write_on_four, two_ranks_run, tmp_path)
    on_ranks(2, read_tied, tmp_path)
    like = EngineState(dict(tiny_model(True, seed=5).state_dict()))
    assert_equal(load_role(actor(tmp_path, True, torch.float32), like), engine_state(tiny_model(True)))


def test_both_ranks_write_each_byte_once(two_ranks_run):
    folder = CheckpointStore(run_of(two_ranks_run, True, torch.float32) / "checkpoints").latest()
    assert json.loads((folder / "manifest.json").read_text())["roles"] == {"actor": 2}
    assert len(list((folder / "actor/weights").glob("*.safetensors"))) == 2
    stored = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    expected = state_bytes(engine_state(tiny_model(True)))
    assert expected < stored < expected * 1.3  # headers


def test_disk_full_is_an_error_on_every_rank(small_disk):
    small_disk.limit()
    on_ranks(2, fill_disk_on_two, small_disk.folder)


def test_no_pickle_on_disk(tmp_path):
    save_role(tmp_path / "actor", engine_state(tiny_model(False)))
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".safetensors", ".json"}


def test_dtype_of_the_engine_wins(tmp_path):
    save_role(tmp_path / "actor", engine_state(tiny_model(False, torch.bfloat16)))
    got = load_role(tmp_path / "actor", EngineState(dict(tiny_model(False, torch.float32, seed=5).state_dict())))
    want = tiny_model(False, torch.bfloat16).state_dict()
    assert all(torch.equal(got.weights[name], tensor.float()) for name, tensor in want.items())


def test_many_files_a_rank(tmp_path, monkeypatch):
    monkeypatch.setattr("verl_core.checkpoint.distributed._FILE_BYTES", 4000)
    save_role(tmp_path / "actor", engine_state(tiny_model(False)))
    assert len(list((tmp_path / "actor/weights").glob("*.safetensors"))) > 5
    assert_equal(
        load_role(tmp_path / "actor", EngineState(dict(tiny_model(False, seed=5).state_dict()))),
        engine_state(tiny_model(False)),
    )


def test_another_model_is_refused_and_nothing_changes(tmp_path):
    save_role(tmp_path / "actor", engine_state(tiny_model(False)))
    other = tiny_model(False, seed=5, vocabulary=101)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(UserError, match=r"lm_head.weight is \[97, 32\] in the checkpoint, \[101, 32\] in the model"):
        load_role(tmp_path / "actor", EngineState(dict(other.state_dict())))
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())


def test_optimizer_of_another_kind_is_refused(tmp_path):
    save_role(tmp_path / "actor", engine_state(tiny_model(False)))
    like = EngineState(dict(tiny_model(False).state_dict()), {"momentum_buffer/lm_head.weight": torch.zeros(97, 32)})
    with pytest.raises(UserError, match=r"momentum_buffer/lm_head.weight is not in the checkpoint"):
        load_role(tmp_path / "actor", like)


def test_a_missing_shard_is_named(two_ranks_run, tmp_path):
    folder = shutil.copytree(actor(two_ranks_run, False, torch.float32), tmp_path / "actor")
    next((folder / "weights").glob("shard-00001*")).unlink()
    with pytest.raises(UserError, match=r"model.embed_tokens.weight is incomplete \(a shard is missing\)"):
        load_role(folder, EngineState(dict(tiny_model(False).state_dict())))


def test_scalars_must_be_json(tmp_path):
    """Case K15: what only a pickle could hold is refused when it is saved."""
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_role(tmp_path / "actor", EngineState({}, {}, {"step": torch.tensor(3)}))
