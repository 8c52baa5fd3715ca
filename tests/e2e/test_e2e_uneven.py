"""Batches that do not divide over the ranks."""

from pathlib import Path

import pytest

from tests.e2e.conftest import records, run_dir_of


@pytest.mark.slow
def test_seven_prompts_on_two_ranks_train_as_on_one(rlx, small, tmp_path: Path):
    """One rank gets four answers and the other three, in micro-batches of two; nothing is padded, so nothing but the
    answers adds to the loss. Five prompts are validated on, before the first step too. RAY_ADDRESS names a cluster of
    somebody else: without cluster.ray_address a run starts its own."""
    keys = {
        "algorithm.name": "reinforce_plus_plus",
        "rollout.n": 1,
        "data.train_batch_size": 7,
        "actor.ppo_mini_batch_size": 7,
        "actor.ppo_micro_batch_size_per_gpu": 2,
        "data.val_max_samples": 5,
        "trainer.save_freq": 0,
    }
    runs = {}
    for ranks in (1, 2):
        name = f"on{ranks}"
        done = rlx(
            *small("smoke", steps=1, trainer__experiment_name=name, cluster__nproc=ranks, **keys),
            env={"RAY_ADDRESS": "127.0.0.1:1"},
        )
        assert done.returncode == 0, done.stderr
        runs[ranks] = records(run_dir_of(tmp_path, name))
    assert [line["step"] for line in runs[2]] == [0, 1]
    for one, two in zip(runs[1], runs[2], strict=True):
        assert set(one) == set(two)
        for name in set(one) & {"actor/loss", "actor/grad_norm", "actor/entropy", "critic/score/mean"}:
            assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-6), name
        assert one.get("val/test_score/rlx/show-your-work") == two.get("val/test_score/rlx/show-your-work")
    assert runs[2][1]["actor/entropy"] > 0  # seven answers may all be wrong, and then move nothing
