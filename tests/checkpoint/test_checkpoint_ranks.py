"""A state written on one number of ranks is read on another, bit by bit, whatever the sharding."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from checkpoint_models import engine_state, on_ranks, sharded, tiny_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from verl_core.checkpoint import CheckpointStore, load_role, save_role, state_bytes
from verl_core.config.errors import UserError
from verl_core.training.protocol import EngineState

CASES = [(True, torch.float32), (False, torch.float32), (True, torch.bfloat16), (False, torch.bfloat16)]


def case_folder(root: Path, tied: bool, dtype: torch.dtype) -> Path:
    return root / f"{'tied' if tied else 'untied'}-{str(dtype).removeprefix('torch.')}"


def small() -> EngineState:
    """Tensors with fewer rows than ranks, no rows, and no axes."""
    return EngineState({"one": torch.tensor([[1.0, 2.0]]), "none": torch.empty(0, 3), "scalar": torch.tensor(7.0)})


def write_on_two(root: Path) -> None:
    for tied, dtype in CASES:
        save_role(case_folder(root, tied, dtype), sharded(engine_state(tiny_model(tied, dtype))))
    mesh = init_device_mesh("cpu", (2,))
    state = small()
    for name in ("one", "none"):
        state.weights[name] = distribute_tensor(state.weights[name], mesh, [Shard(0)])
    save_role(root / "small", state)


def read_on_two(root: Path) -> None:
    for tied, dtype in CASES:
        fresh = sharded(engine_state(tiny_model(tied, dtype, seed=5), seed=6))
        fresh.optimizer.clear()  # an engine that has not stepped yet
        assert_equal(load_role(case_folder(root, tied, dtype), fresh), engine_state(tiny_model(tied, dtype)))
        assert isinstance(fresh.weights["model.embed_tokens.weight"], DTensor)
    like = EngineState({name: torch.zeros_like(tensor) for name, tensor in small().weights.items()})
    like.weights["one"] = distribute_tensor(like.weights["one"], init_device_mesh("cpu", (2,)), [Shard(0)])
    assert_equal(load_role(root / "small", like), small())


def assert_equal(got: EngineState, want: EngineState) -> None:
    assert got.scalars == want.scalars
    for got_part, want_part in ((got.weights, want.weights), (got.optimizer, want.optimizer)):
        assert got_part.keys() == want_part.keys()
        for name, tensor in want_part.items():
            value = got_part[name]
            value = value.full_tensor() if isinstance(value, DTensor) else value
            assert value.dtype == tensor.dtype and torch.equal(value, tensor), name


def test_two_ranks_to_one_and_to_two(tmp_path):
    on_ranks(2, write_on_two, tmp_path)
    for tied, dtype in CASES:
        folder = case_folder(tmp_path, tied, dtype)
        model = tiny_model(tied, dtype, seed=5)
        got = load_role(folder, EngineState(dict(model.state_dict())))
        assert_equal(got, engine_state(tiny_model(tied, dtype)))
        assert torch.equal(model.lm_head.weight, tiny_model(tied, dtype).lm_head.weight)  # filled in place
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
        assert len(list((folder / "weights").glob("*.safetensors"))) == 2, "both ranks write"
    assert_equal(
        load_role(tmp_path / "small", EngineState({k: torch.zeros_like(t) for k, t in small().weights.items()})),
        small(),
    )
    on_ranks(2, read_on_two, tmp_path)


def test_one_rank_to_two(tmp_path):
    for tied, dtype in CASES:
        save_role(case_folder(tmp_path, tied, dtype), engine_state(tiny_model(tied, dtype)))
    save_role(tmp_path / "small", small())
    on_ranks(2, read_on_two, tmp_path)


def commit_from_two(root: Path) -> None:
    store = CheckpointStore(root)
    state = sharded(engine_state(tiny_model(True)))
    path = [store.begin(3, state_bytes(state)) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(path)
    save_role(path[0] / "actor", state)
    dist.barrier()
    if dist.get_rank() == 0:
        store.commit(3)


def test_manifest_says_how_many_ranks_wrote(tmp_path):
    on_ranks(2, commit_from_two, tmp_path)
    folder = CheckpointStore(tmp_path).latest()
    assert json.loads((folder / "manifest.json").read_text())["roles"] == {"actor": 2}
    stored = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    expected = state_bytes(engine_state(tiny_model(True)))
    assert expected < stored < expected * 1.3  # each byte once, plus headers


def test_no_pickle_on_disk(tmp_path):
    save_role(tmp_path / "actor", engine_state(tiny_model(False)))
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert kinds == {".safetensors", ".json"}


def test_dtype_of_the_engine_wins(tmp_path):
    save_role(tmp_path / "actor", engine_state(tiny_model(False, torch.bfloat16)))
    got = load_role(tmp_path / "actor", EngineState(dict(tiny_model(False, torch.float32, seed=5).state_dict())))
    want = tiny_model(False, torch.bfloat16).state_dict()
    assert all(torch.equal(got.weights[name], tensor.float()) for name, tensor in want.items())


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
    with pytest.raises(UserError, match="momentum_buffer/lm_head.weight is not in the checkpoint"):
        load_role(tmp_path / "actor", like)


def test_a_missing_shard_is_named(tmp_path):
    on_ranks(2, write_on_two, tmp_path)
    folder = case_folder(tmp_path, False, torch.float32)
    next((folder / "weights").glob("shard-00001*")).unlink()
    with pytest.raises(UserError, match=r"model.embed_tokens.weight is incomplete \(a shard is missing\)"):
        load_role(folder, EngineState(dict(tiny_model(False).state_dict())))
