"""kill -9 at random moments of a loop that saves: the newest checkpoint is always whole, and never older than the last
whose commit returned."""

import multiprocessing
import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from verl_core.checkpoint import CheckpointStore, load_role
from verl_core.checkpoint.unwritten import Unwritten
from verl_core.training.protocol import EngineState


def state(step: int) -> EngineState:
    return EngineState(
        {f"layer.{i}.weight": torch.full((64, 64), float(step)) for i in range(4)},
        {"exp_avg/layer.0.weight": torch.full((64, 64), float(step))},
        {"step": step},
    )


def step_of(folder: Path) -> int:
    """The step a checkpoint holds; fails unless every value in it is of that step."""
    loaded = load_role(folder / "actor", state(-1))
    step = loaded.scalars["step"]
    assert folder.name == f"global_step_{step}"
    assert all(bool((t == step).all()) for t in [*loaded.weights.values(), *loaded.optimizer.values()])
    return step


def train(folder: Path, resumed: bool, behind: bool, pipe: Connection) -> None:
    """A resumed run: clears up, goes on from the newest checkpoint, saves after every step until it is killed;
    `behind`: takes what it saves, and writes that during the next step."""
    store = CheckpointStore(folder, keep=2)
    store.recover()
    newest = store.latest()
    assert (newest is not None) == resumed
    step = step_of(newest) if newest else 0
    shares, trained = Unwritten(), state(step)
    with ThreadPoolExecutor(1) as writer:
        writing: Future[None] | None = None
        while True:
            step += 1
            advance(trained)
            if writing:
                writing.result()
            path = store.begin(step)
            shares.take(path / "actor", trained)
            (path / "loader.json").write_text(str(step))
            writing = writer.submit(complete, store, shares, step, pipe)
            if not behind:
                writing.result()


def advance(trained: EngineState) -> None:
    """One step, in place."""
    for tensor in [*trained.weights.values(), *trained.optimizer.values()]:
        tensor += 1
    trained.scalars["step"] += 1


def complete(store: CheckpointStore, shares: Unwritten, step: int, pipe: Connection) -> None:
    shares.write()
    store.commit(step)
    pipe.send(step)


def kill_many_times(folder: Path, kills: int, seed: int, behind: bool) -> None:
    context = multiprocessing.get_context("fork")
    draw = random.Random(seed)
    committed, interrupted, save_s = 0, 0, 0.05
    for _ in range(kills):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=train, args=(folder, committed > 0, behind, theirs))
        process.start()
        theirs.close()
        assert mine.poll(60), "no save in a minute"
        start = time.perf_counter()
        time.sleep(draw.uniform(0, 3 * save_s))
        process.kill()
        process.join()
        reported = []
        while mine.poll():
            try:
                reported.append(mine.recv())
            except EOFError:
                break
        assert reported, "the run ended by itself"
        save_s = max(0.01, (time.perf_counter() - start) / len(reported))
        store = CheckpointStore(folder, keep=2)
        newest = step_of(store.latest())
        assert newest >= reported[-1] > committed, "a committed checkpoint is lost"
        assert (folder / (folder / "latest").read_text().strip() / "manifest.json").is_file()
        committed = newest
        interrupted += any(path.name.startswith(".tmp-") for path in folder.iterdir())
    assert interrupted >= kills // 4, "too few kills hit a save: the test would prove little"
    store.recover()  # also finishes a last save that lacked its rename alone
    newest = step_of(store.latest())
    assert newest in (committed, committed + 1)
    committed = newest
    assert {path.name for path in folder.iterdir()} <= {f"global_step_{committed - i}" for i in range(3)} | {"latest"}


@pytest.mark.parametrize("behind", [False, True])
def test_kill_in_the_middle_of_saves(tmp_path, behind):
    """Case K13."""
    kill_many_times(tmp_path / "checkpoints", kills=8, seed=0, behind=behind)


@pytest.mark.slow
@pytest.mark.parametrize("behind", [False, True])
def test_kill_in_the_middle_of_many_saves(tmp_path, behind):
    kill_many_times(tmp_path / "checkpoints", kills=50, seed=1, behind=behind)
