"""Two CPU ranks under Ray do what one rank does, and take over from each other at a checkpoint."""

import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import records, run_dir_of

# Sums over ranks are rounded in another order: equal up to float32.
CLOSE = {"rel": 1e-5, "abs": 1e-6}


TRAINED = ["actor/loss", "actor/grad_norm", "critic/loss", "critic/grad_norm", "critic/score/mean", "actor/entropy"]
UNSAVED = {"trainer.save_freq": 0, "trainer.test_freq": 0, "trainer.val_before_train": "false"}


@pytest.fixture(scope="module")
def of_one() -> list[dict]:
    """What one rank logs, once the first test that asks for it has run."""
    return []


@pytest.fixture
def one_rank(of_one, train_here, small):
    """By step, of which the first is the validation."""
    if not of_one:
        of_one += train_here(small("smoke-ppo", steps=4, trainer__experiment_name="one"))
    return of_one


def same(line: dict, other: dict, names: list[str]) -> None:
    for name in names:
        assert line[name] == pytest.approx(other[name], **CLOSE), name


@pytest.mark.slow
def test_two_ranks_give_the_loss_and_gradient_of_one_and_resume_each_other(rlx, train_here, small, one_rank, tmp_path):
    two = rlx(*small("smoke-ppo", steps=2, trainer__experiment_name="two", cluster__nproc=2))
    assert two.returncode == 0, two.stderr
    lines = records(run_dir_of(tmp_path, "two"))
    same(lines[1], one_rank[1], TRAINED)
    same(lines[2], one_rank[2], TRAINED)
    # what two ranks saved, one continues; what that saved, two continue
    train_here(small("smoke-ppo", steps=3, trainer__experiment_name="two"), resume=True)
    up = rlx(*small("smoke-ppo", steps=4, trainer__experiment_name="two", cluster__nproc=2), "--resume")
    assert up.returncode == 0, up.stderr
    lines = records(run_dir_of(tmp_path, "two"))
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    for step in (3, 4):
        same(lines[step], one_rank[step], TRAINED)


@pytest.mark.slow
def test_three_ranks_that_split_rows_give_the_loss_and_gradient_of_one(rlx, small, one_rank, tmp_path: Path):
    """The builtin model has three heads."""
    both = {f"{role}__ulysses_sequence_parallel_size": 3 for role in ("actor", "critic")}
    done = rlx(*small("smoke-ppo", steps=2, trainer__experiment_name="three", cluster__nproc=3, **both, **UNSAVED))
    assert done.returncode == 0, done.stderr
    lines = records(run_dir_of(tmp_path, "three"))
    for step in (1, 2):
        same(lines[step - 1], one_rank[step], TRAINED)


def test_ranks_that_cannot_share_the_heads_are_refused_before_anything_starts(rlx, small, tmp_path: Path):
    done = rlx(*small("smoke", steps=1, cluster__nproc=2, actor__ulysses_sequence_parallel_size=2))
    assert done.returncode == 1, done.stderr
    assert "actor.ulysses_sequence_parallel_size=2 does not divide the model's 3 attention heads" in done.stderr
    assert "hint:" in done.stderr and "Traceback" not in done.stderr and not run_dir_of(tmp_path).exists()


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_run_with_exit_5_instead_of_a_hang(rlx, small, tmp_path: Path):
    reward = tmp_path / "reward.py"
    # the scorer runs on this machine beside the ranks: it looks for one of them and kills it
    reward.write_text(
        "import os, pathlib, signal\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    for entry in pathlib.Path('/proc').iterdir():\n"
        "        if entry.name.isdigit():\n"
        "            try:\n"
        "                mine = (entry / 'cwd').readlink() == pathlib.Path.cwd()\n"
        "                if mine and (entry / 'cmdline').read_text().startswith('ray::Worker'):\n"
        "                    os.kill(int(entry.name), signal.SIGKILL)\n"
        "            except OSError:\n"
        "                pass\n"
        "    return 1.0\n"
    )
    words = small("smoke", steps=2, cluster__nproc=2, reward__custom_reward_function__path=reward)
    done = rlx(*words, "trainer.val_before_train=false")
    assert done.returncode == 5, done.stderr
    assert "process died" in done.stderr and "hint:" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_what_a_rank_refuses_reaches_the_person_as_one_line(rlx, small, warm_model: Path, tmp_path: Path):
    torn = tmp_path / "torn"
    shutil.copytree(warm_model, torn)
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    done = rlx(*small("smoke", steps=1, model__path=torn, cluster__nproc=2))
    assert done.returncode == 1, done.stderr
    assert f"error: cannot load the model in {torn}" in done.stderr and "hint:" in done.stderr
    assert "Traceback" not in done.stderr and not run_dir_of(tmp_path).exists()


@pytest.mark.slow
def test_a_reference_on_a_pool_of_its_own_is_the_start_also_after_resume(rlx, train_here, small, tmp_path: Path):
    def words(steps: int, name: str, **more: object) -> list[str]:
        keys = {"actor.use_kl_loss": "true", "actor.kl_loss_coef": 0.1, **UNSAVED, "trainer.save_freq": 2, **more}
        return small("smoke", steps=steps, trainer__experiment_name=name, **keys)

    one = train_here(words(3, "one"))
    pools = {"cluster.pools": "{main: {nodes: 1, gpus: 1}, start: {nodes: 1, gpus: 1}}", "ref.pool": "start"}
    assert (done := rlx(*words(2, "split", **pools))).returncode == 0, done.stderr
    assert (done := rlx(*words(3, "split", **pools), "--resume")).returncode == 0, done.stderr
    split = records(run_dir_of(tmp_path, "split"))
    assert one[-1]["actor/kl_loss"] > 0
    same(split[-1], one[-1], ["actor/kl_loss", "actor/loss", "actor/grad_norm"])


@pytest.mark.slow
def test_a_critic_on_a_pool_of_its_own_changes_nothing(rlx, small, one_rank, tmp_path: Path):
    pools = "{main: {nodes: 1, gpus: 1}, values: {nodes: 1, gpus: 1}}"
    keys = {"cluster.pools": pools, "critic.pool": "values", **UNSAVED}
    done = rlx(*small("smoke-ppo", steps=2, trainer__experiment_name="split", **keys))
    assert done.returncode == 0, done.stderr
    lines = records(run_dir_of(tmp_path, "split"))
    same(lines[-1], one_rank[2], ["actor/loss", "actor/grad_norm", "critic/loss", "critic/grad_norm"])
