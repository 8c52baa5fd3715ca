"""Rollout engines on a pool of their own: the run is the one with engines beside the trainer."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import records, run_dir_of

pytestmark = pytest.mark.slow
CLOSE = {"rel": 1e-5, "abs": 1e-6}
SAME = ["critic/rewards/mean", "response_length/mean", "actor/grad_norm", "actor/loss"]


def apart(trainers: int = 1, **more: object) -> dict[str, object]:
    pools = f"{{train: {{nodes: 1, gpus: {trainers}}}, gen: {{nodes: 1, gpus: 1}}}}"
    return {"cluster.pools": pools, "actor.pool": "train", "rollout.pool": "gen", "weights.verify": "true", **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def of_one() -> list[dict]:
    """What a run on one pool logs, once the first test that asks for it has run."""
    return []


@pytest.mark.parametrize(("kind", "trainers"), [("broadcast", 1), ("delta", 2), ("disk", 1)])
def test_a_run_across_pools_samples_and_trains_as_one_on_one_pool(
    rlx, train_here, small, of_one, folder, tmp_path, kind, trainers
):
    common = {"trainer.val_before_train": "false", "trainer.test_freq": 0, "trainer.save_freq": 0}
    if not of_one:
        alone = {"trainer.experiment_name": "one", "weights.verify": "true"}
        of_one += train_here(small("smoke", steps=3, **common, **alone))
    keys = apart(trainers, **common, **{"weights.type": kind})
    if kind == "disk":
        keys["weights.folder"] = folder
    done = rlx(*small("smoke", steps=3, trainer__experiment_name="split", **keys), timeout=400)
    assert done.returncode == 0, done.stderr
    split = records(run_dir_of(tmp_path, "split"))
    assert len(of_one) == len(split) == 3
    for ours, theirs in zip(split, of_one, strict=True):
        for name in SAME:
            assert ours[name] == pytest.approx(theirs[name], **CLOSE), name
        assert ours["training/rollout_logp_diff_max"] < 1e-4  # new weights arrive at every step


def test_vllm_on_a_pool_of_its_own_is_sent_weights_by_broadcast(rlx, warm_model, tmp_path):
    keys = apart(**{"trainer.total_training_steps": 2, "trainer.experiment_name": "v", "model.path": warm_model})
    words = [f"{key}={value}" for key, value in keys.items()]
    more = ["rollout.engine=vllm", "trainer.device=cpu", "rollout.gpu_memory_utilization=0.3", "data.val_max_samples=9"]
    done = rlx("train", "smoke", *words, *more, env={"RLX_PYTHON": None}, timeout=900)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "runs/smoke/v/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "critic/rewards/mean" in line]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["training/rollout_logp_diff_max"] < 1e-3 for line in steps)
