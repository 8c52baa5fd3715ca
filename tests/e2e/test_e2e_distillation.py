"""On-policy distillation and PRIME run for a few steps, and go on after a stop as if there had been none; one by the
real command, with all that lies beside a run of it."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import records, run_dir_of, same_after_a_stop
from verl_core.checkpoint.merge import merge, plan_merge
from verl_core.config.catalogue import entry, names
from verl_core.tracking.registry import check_known

TEACHER = "distillation.teacher_models.one.model_path"
OPD = {
    "advantage": ["distillation.coef=0.5", "actor.ppo_mini_batch_size=2"],
    "back-propagated": ["distillation.loss_mode=k2", "distillation.use_policy_gradient=false"],
    "likeliest": [
        "distillation.loss_mode=forward_kl_topk",
        "distillation.use_policy_gradient=false",
        "distillation.topk=4",
        "actor.ppo_micro_batch_size_per_gpu=null",
        "actor.ppo_max_token_len_per_gpu=256",
    ],
    "with rewards": [
        "distillation.use_task_rewards=true",
        "algorithm.adv_estimator=rloo",
        "distillation.loss_max_clamp=2",
        "actor.use_kl_loss=true",
    ],
}
PRIME = ["algorithm.prime.accuracy_lower_bound=0", "algorithm.prime.accuracy_upper_bound=1", "algorithm.prime.beta=1"]
LEAN = ["data.val_files=null", "data.train_max_samples=32", "trainer.save_freq=0", "trainer.parity=off"]
SHORT = "[{name: skill, steps: 30, optim: {lr: 5e-3}}, {name: habit, steps: 2, data: builtin:show-your-work/habit}]"


def test_each_algorithm_has_a_run_here():
    needed = {"teacher", "process_rewards"}
    assert {name for name in names("algorithm") if needed & {*entry("algorithm", name).needs}} == {"opd", "prime"}


@pytest.fixture
def words(small, warm_model: Path):
    """What follows `rlx` for three steps."""

    def made(name: str) -> list[str]:
        if name == "prime":
            return [*small("smoke", steps=3, algorithm__name="prime", algorithm__prime__optim__lr=1e-3), *PRIME]
        return [*small("smoke", steps=3, algorithm__name="opd"), f"{TEACHER}={warm_model}", *OPD[name]]

    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OPD, "prime"])
def test_a_stopped_run_goes_on_as_the_unbroken_one(train_here, words, name: str):
    holds(name, same_after_a_stop(train_here, [*words(name), *LEAN], until=2))


@pytest.mark.slow
def test_a_builtin_teacher_by_the_command(rlx, tmp_path: Path):
    keys = ["data.val_max_samples=8", "data.train_batch_size=4", "actor.ppo_mini_batch_size=4"]
    run = ["trainer.experiment_name=run", "trainer.total_training_steps=2", f"warmup.phases={SHORT}"]
    done = rlx("train", "smoke-opd", *keys, *run)
    assert done.returncode == 0, done.stderr
    lines = records(run_dir_of(tmp_path))
    check_known({key for line in lines for key in line} - {"step"})
    assert all(line["distillation/reverse_kl"] > 0 for line in lines[1:])
    teacher = run_dir_of(tmp_path) / "warmup" / "after" / "skill"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in teacher.iterdir()}
    assert not (teacher.parent / "habit").exists()
    checkpoint = run_dir_of(tmp_path) / "checkpoints" / "global_step_2"
    assert not [folder.name for folder in checkpoint.iterdir() if folder.name.startswith("teacher")]


@pytest.mark.slow
def test_the_reward_model_of_prime_is_a_model_like_others(train_here, words, tmp_path: Path):
    train_here([*words("prime"), *LEAN, "trainer.save_freq=3"])
    merge(plan_merge(run_dir_of(tmp_path), tmp_path / "judge", role="reward_model"))
    assert json.loads((tmp_path / "judge" / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]


def holds(name: str, lines: list[dict]) -> None:
    """What three steps log."""
    steps = lines[-3:]
    assert [line["step"] for line in steps] == [1, 2, 3]
    check_known({key for line in lines for key in line} - {"step"})
    assert all(line["actor/skipped_steps"] == 0 for line in steps)
    if name == "prime":
        assert steps[0]["reward_model/process_reward"] == 0 != steps[2]["reward_model/process_reward"]
        assert all(line["reward_model/grad_norm"] > 0 and line["reward_model/kept_prompts"] == 1 for line in steps)
        return
    assert all(("distillation/topk_mass" in line) == (name == "likeliest") for line in steps)
    assert all(("distillation/loss" in line) == (name in ("likeliest", "back-propagated")) for line in steps)
    assert all(("actor/kl_loss" in line) == (name == "with rewards") for line in steps)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["likeliest", "prime"])
def test_two_ranks_do_what_one_does(train_here, words, name: str):
    """Of `likeliest` the teacher is on two ranks of a pool of its own, the student on one."""
    pools = ["cluster.pools={main: {nodes: 1, gpus: 1}, aside: {nodes: 1, gpus: 2}}", "teacher.pool=aside"]
    more = pools if name == "likeliest" else ["cluster.nproc=2"]
    one, two = (
        train_here([*words(name), *LEAN, "trainer.total_training_steps=1", f"trainer.experiment_name={run}", *keys])[-1]
        for run, keys in (("one", []), ("two", more))
    )
    roles = ("actor/", "reward_model/", "distillation/", "critic/")
    same = {key: one[key] for key in one if key.startswith(roles)}
    assert len(same) > 10 and {key: two[key] for key in same} == pytest.approx(same, rel=1e-4, abs=1e-5)
