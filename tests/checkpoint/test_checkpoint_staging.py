"""Shares of a checkpoint that are taken first and written later, while the engine goes on."""

import logging

import pytest
import torch
from checkpoint_models import engine_state, on_ranks, sharded, tiny_model
from torch.distributed.tensor import DTensor

from verl_core.checkpoint import load_role
from verl_core.checkpoint.distributed import share_bytes
from verl_core.checkpoint.staging import HostCopies
from verl_core.checkpoint.unwritten import Unwritten
from verl_core.config.errors import RunError
from verl_core.training.protocol import EngineState

SLAB = "verl_core.checkpoint.staging.SLAB_BYTES"


def train_on(state: EngineState) -> None:
    """Changes every tensor in place, as optimizer steps do."""
    for tensor in [*state.weights.values(), *state.optimizer.values()]:
        (tensor.to_local() if isinstance(tensor, DTensor) else tensor).fill_(7)


def assert_written(folder, want: EngineState, like: EngineState) -> None:
    got = load_role(folder, like)
    for name, tensor in [*want.weights.items(), *want.optimizer.items()]:
        value = got.weights.get(name, got.optimizer.get(name))
        value = value.full_tensor() if isinstance(value, DTensor) else value
        assert value.dtype == tensor.dtype and torch.equal(value, tensor), name
    assert got.scalars == want.scalars


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slab", [1000, 64 << 20])
def test_what_is_written_is_what_was_taken(tmp_path, monkeypatch, slab, dtype):
    monkeypatch.setattr(SLAB, slab)
    model = tiny_model(True, dtype)
    state, shares = engine_state(model), Unwritten()
    for save in ("first", "second"):  # the second into the same memory
        model.load_state_dict(tiny_model(True, dtype, seed=len(save)).state_dict())
        want = engine_state(tiny_model(True, dtype, seed=len(save)))
        state.optimizer.update({name: tensor.clone() for name, tensor in want.optimizer.items()})
        shares.take(tmp_path / save, state)
        taken = shares.copies.bytes
        train_on(state)
        assert not (tmp_path / save).exists()
        shares.write()
        assert_written(tmp_path / save, want, EngineState(dict(tiny_model(True, dtype, seed=9).state_dict())))
    share = sum(t.nbytes for t in [*dict(model.named_parameters()).values(), *state.optimizer.values()])
    assert taken == shares.copies.bytes < share + slab, "one copy, tied weights once, kept for the next save"


def on_two(root) -> None:
    state, shares = sharded(engine_state(tiny_model(True))), Unwritten(2)
    shares.take(root / "actor", state)
    train_on(state)
    shares.write()
    torch.distributed.barrier()
    fresh = sharded(engine_state(tiny_model(True, seed=5), seed=6))
    assert_written(root / "actor", engine_state(tiny_model(True)), fresh)


def test_two_ranks(tmp_path):
    on_ranks(2, on_two, tmp_path)
    like = EngineState(dict(tiny_model(True, seed=5).state_dict()))
    assert_written(tmp_path / "actor", engine_state(tiny_model(True)), like)


def test_without_room_for_a_copy_it_is_written_at_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("verl_core.checkpoint.unwritten.free_memory", lambda: 1000)
    state, shares = engine_state(tiny_model(False)), Unwritten(8)
    with caplog.at_level(logging.WARNING):
        shares.take(tmp_path / "actor", state)
    assert "a copy of what each of the 8 ranks here writes" in caplog.text
    train_on(state)
    assert shares.copies.bytes == 0
    shares.write()
    like = EngineState(dict(tiny_model(False, seed=5).state_dict()))
    assert_written(tmp_path / "actor", engine_state(tiny_model(False)), like)


def test_a_full_disk_is_an_error_of_the_writer_and_the_next_save_starts_afresh(tmp_path, small_disk):
    shares = Unwritten()
    shares.take(small_disk.folder / "actor", EngineState({"weight": torch.ones(400_000)}))
    small_disk.limit()
    with pytest.raises(RunError, match=r"could not write .*(No space left|File too large)"):
        shares.write()
    shares.write()  # nothing is left of the failed save
    shares.take(tmp_path / "actor", EngineState({"weight": torch.ones(100)}))
    shares.write()
    assert torch.equal(
        load_role(tmp_path / "actor", EngineState({"weight": torch.zeros(100)})).weights["weight"], torch.ones(100)
    )


def test_memory_that_was_made_before_the_first_save_is_that_of_the_save(tmp_path, monkeypatch):
    monkeypatch.setattr(SLAB, 1000)
    state, shares = engine_state(tiny_model(True)), Unwritten()
    size = share_bytes(state)
    shares.expect(state)
    shares.take(tmp_path / "actor", state)
    assert size <= shares.copies.bytes < size + 1000 and shares.copies.used == size
    monkeypatch.setattr("verl_core.checkpoint.unwritten.free_memory", lambda: 1000)
    (crowded := Unwritten(8)).expect(state)
    crowded.take(tmp_path / "crowded", state)
    assert crowded.copies.bytes == 0 and (tmp_path / "crowded").is_dir(), "no room: written at once"


def test_copies_are_cut_at_the_ends_of_slabs(monkeypatch):
    monkeypatch.setattr(SLAB, 10)
    copies = HostCopies()
    values = torch.arange(25, dtype=torch.uint8)
    pieces = [*copies.take(values[:4]), *copies.take(values[4:]), *copies.take(values[:0])]
    assert [piece.numel() for piece in pieces] == [4, 6, 10, 5]
    assert torch.equal(torch.cat(pieces), values)
