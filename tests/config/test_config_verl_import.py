"""veRL's launch scripts as rlx.yaml: the values that veRL would run with, and a report that leaves no word out."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verl_core.config import yaml_text
from verl_core.config.compose import resolve
from verl_core.config.effective import effective, get
from verl_core.config.errors import UserError
from verl_core.config.typed import leaf_types
from verl_core.config.verl_import import Imported, import_script
from verl_core.config.verl_keys import FIXED, RENAMED, SUBTREES

SCRIPTS = Path(__file__).parent / "verl_scripts"
LAUNCH = "python3 -m verl.trainer.main_ppo"
NEEDED = "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
WORDS = ("carried", "renamed", "always", "idle", "without", "undecided")


def imported(name: str, **options) -> Imported:
    return import_script((SCRIPTS / f"{name}.sh").read_text(), f"{name}.sh", **options)


def config_of(found: Imported, folder: Path):
    """The configuration that the written file stands for."""
    file = folder / "rlx.yaml"
    file.write_text(found.text)
    return effective(resolve(None, file=file, strict=True).config)


def texts(items) -> dict[str, str]:
    return {item.key: item.text for item in items}


EXPECTED = {
    "gsm8k_ppo": {
        "algorithm.name": "ppo",
        "critic.enable": True,
        "critic.optim.lr": 1e-5,
        "critic.model.path": "Qwen/Qwen2.5-0.5B-Instruct",
        "actor.ppo_micro_batch_size_per_gpu": 4,
        "data.train_files": "~/data/gsm8k/train.parquet",
        "data.train_batch_size": 256,
        "rollout.gpu_memory_utilization": 0.4,
        "rollout.tensor_model_parallel_size": 1,
        "trainer.logger": ["console"],
        "trainer.total_epochs": 15,
        "reward.num_workers": 8,
    },
    "grpo_7b_vllm": {
        "algorithm.name": "grpo",
        "critic.enable": False,
        "model.path": "Qwen/Qwen2.5-7B-Instruct",
        "data.train_files": ["~/data/gsm8k/train.parquet", "~/data/math/train.parquet"],
        "data.filter_overlong_prompts": True,
        "actor.ppo_max_token_len_per_gpu": 24576,
        "actor.ppo_micro_batch_size_per_gpu": None,
        "actor.use_kl_loss": True,
        "actor.kl_loss_coef": 0.001,
        "rollout.engine": "vllm",
        "rollout.tensor_model_parallel_size": 2,
        "rollout.n": 5,
        "cluster.n_gpus_per_node": 8,
        "trainer.logger": ["console", "wandb"],
        "trainer.experiment_name": None,
    },
    "dapo_32b": {
        "algorithm.name": "dapo",
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.max_num_gen_batches": 10,
        "actor.clip_ratio_low": 0.2,
        "actor.clip_ratio_high": 0.28,
        "actor.clip_ratio_c": 10.0,
        "actor.ppo_max_token_len_per_gpu": 22528,
        "actor.ulysses_sequence_parallel_size": 8,
        "actor.fsdp_config.param_offload": True,
        "actor.optim.lr_warmup_steps": 10,
        "data.max_response_length": 20480,
        "data.truncation": "left",
        "model.override_config": {"attention_dropout": 0.0, "embd_pdrop": 0.0},
        "reward.overlong_buffer.enable": True,
        "reward.overlong_buffer.len": 4096,
        "reward.overlong_buffer.penalty_factor": 1.0,
        "rollout.val_kwargs.top_p": 0.7,
        "cluster.nnodes": 16,
        "trainer.experiment_name": "DAPO-Qwen2.5-32B",
    },
    "megatron_30b_a3b": {
        "actor.strategy": "megatron",
        "actor.megatron.tensor_model_parallel_size": 2,
        "actor.megatron.pipeline_model_parallel_size": 2,
        "actor.megatron.expert_model_parallel_size": 8,
        "actor.megatron.param_offload": True,
        "actor.megatron.optimizer_offload": True,
        "actor.megatron.recompute_granularity": "full",
        "cluster.nnodes": 4,
        "cluster.n_gpus_per_node": 8,
        "trainer.logger": ["console"],
    },
    "lora_3b": {
        "model.lora_rank": 32,
        "model.lora_alpha": 64,
        "model.exclude_modules": ["visual", "lm_head"],
        "actor.strategy": "fsdp",
        "actor.fsdp_config.model_dtype": "bfloat16",
        "actor.ppo_micro_batch_size_per_gpu": 40,
        "actor.ppo_max_token_len_per_gpu": None,
        "data.shuffle": False,
        "trainer.total_training_steps": 100,
        "rollout.tensor_model_parallel_size": 2,
    },
    "ppo_reward_model": {
        "algorithm.name": "ppo",
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_ctrl.type": "adaptive",
        "algorithm.gamma": 0.99,
        "actor.clip_ratio_low": 0.2,
        "actor.clip_ratio_high": 0.2,
        "critic.ppo_mini_batch_size": 128,
        "critic.ppo_max_token_len_per_gpu": 32768,
        "critic.model.enable_gradient_checkpointing": False,
        "data.val_files": None,
        "reward.custom_reward_function.path": "my_reward.py",
    },
    "ray_job": {
        "algorithm.name": "rloo",
        "rollout.engine": "sglang",
        "data.train_files": "~/data/rlhf/gsm8k/train.parquet",
        "cluster.nnodes": 2,
        "cluster.n_gpus_per_node": 8,
    },
    "sft": {
        "algorithm.name": "sft",
        "model.path": "Qwen/Qwen2.5-0.5B-Instruct",
        "data.train_batch_size": 256,
        "actor.ppo_mini_batch_size": 256,
        "actor.ppo_micro_batch_size_per_gpu": 4,
        "actor.optim.lr": 1e-4,
        "actor.grad_clip": 0.5,
        "actor.ulysses_sequence_parallel_size": 2,
        "cluster.n_gpus_per_node": 4,
        "trainer.default_local_dir": "/out",
        "trainer.total_epochs": 3,
    },
}
GIVEN = {"sft": {"1": "4", "2": "/out", "3": "trainer.total_epochs=3"}}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("extends", [None, "gsm8k-grpo"])
def test_a_script_becomes_the_configuration_that_verl_would_run(name, extends, tmp_path):
    found = imported(name, given=GIVEN.get(name), extends=extends)
    assert found.report.breaks == []
    config = config_of(found, tmp_path)
    assert {key: get(config, key) for key in EXPECTED[name]} == EXPECTED[name]


@pytest.mark.parametrize("name", [path.stem for path in sorted(SCRIPTS.glob("*.sh"))])
def test_every_word_is_in_the_report_once_and_only_what_differs_in_the_file(name):
    found = imported(name)
    counted = [item.key for kind in WORDS for item in getattr(found.report, kind)]
    script = (SCRIPTS / f"{name}.sh").read_text().replace("$ACTOR", "actor_rollout_ref.actor")
    script = script.replace("${ACTOR}", "actor_rollout_ref.actor")
    lines = [line.partition(" #")[0] for line in script.splitlines() if not line.lstrip().startswith("#")]
    words = [word.strip("\"'+~()") for line in lines for word in line.split() if "=" in word or word[0] == "~"]
    asked = {word.partition("=")[0] for word in words if "." in word.partition("=")[0] and word[0].islower()}
    assert asked - {"trainer.total_epochs"} <= set(counted)
    assert len(counted) == len(set(counted)) or name == "megatron_30b_a3b"  # a list of trackers, one of them unknown
    file = yaml_text.read(found.text)
    base = resolve(found.report.extends).config if found.report.extends else None
    for section, keys in file.items():
        for key, value in keys.items() if base and isinstance(keys, dict) else ():
            assert isinstance(value, dict) or getattr(getattr(base, section), key) != value


def test_the_quickstart_extends_its_profile_and_reports_what_does_nothing():
    report = imported("gsm8k_ppo").report
    assert report.extends == "gsm8k-ppo"
    assert (report.line, report.module) == (2, "verl.trainer.main_ppo")
    assert "actor.use_kl_loss=true" in texts(report.idle)["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"]
    assert [item.key for item in report.defaults] == ["reward.num_workers"]
    assert texts(report.environment) == {"PYTHONUNBUFFERED": ""}


def test_the_better_agreeing_profile_is_chosen_and_a_given_one_wins():
    assert imported("dapo_32b").report.extends != "smoke"
    assert imported("gsm8k_ppo", extends="smoke").report.extends == "smoke"
    assert "extends: smoke" in imported("gsm8k_ppo", extends="smoke").text
    with pytest.raises(UserError, match="no profile 'nope'"):
        imported("gsm8k_ppo", extends="nope")


def test_what_has_no_counterpart_says_what_takes_its_place():
    report = imported("sglang_multi_turn").report
    without = texts(report.without)
    assert "several turns are not built yet" in without["actor_rollout_ref.rollout.multi_turn.enable"]
    assert "agent loops" in without["actor_rollout_ref.rollout.agent.default_agent_loop"]
    assert "no such key here" in without["actor_rollout_ref.rollout.over_sample_rate"]
    assert "null unsets one" in without["trainer.balance_batch"]
    undecided = texts(report.undecided)
    assert "loop in line 7" in undecided["data.seed"]
    assert "--set DATA_DIR=VALUE" in undecided["data.train_files"]
    assert any("gsm8k_multiturn_grpo" in note and "not read" in note for note in report.notes)
    assert any("trainer.total_epochs=15: stands behind the end" in note for note in report.notes)
    assert report.breaks == []
    given = imported("sglang_multi_turn", given={"DATA_DIR": "/d"})
    assert yaml_text.read(given.text)["data"]["train_files"] == "/d/train.parquet"


def test_the_reference_needs_no_setting_where_it_agrees_with_the_actor():
    report = imported("megatron_30b_a3b").report
    assert "as the actor does" in texts(report.always)["actor_rollout_ref.ref.megatron.tensor_model_parallel_size"]
    assert "actor.megatron" in texts(report.without)["actor_rollout_ref.ref.megatron.expert_model_parallel_size"]
    assert "swanlab" in texts(report.without)["trainer.logger"]
    assert any("strategy=megatron comes with a later release" in line for line in report.later)


@pytest.mark.parametrize(
    ("words", "values", "idle"),
    [
        ("A.use_dynamic_bsz=True", {"ppo_max_token_len_per_gpu": 16384, "ppo_micro_batch_size_per_gpu": None}, []),
        (
            "A.use_dynamic_bsz=True A.ppo_max_token_len_per_gpu=9000 A.ppo_micro_batch_size_per_gpu=3",
            {"ppo_max_token_len_per_gpu": 9000, "ppo_micro_batch_size_per_gpu": None},
            ["A.ppo_micro_batch_size_per_gpu"],
        ),
        (
            "A.ppo_max_token_len_per_gpu=9000 A.ppo_micro_batch_size_per_gpu=3",
            {"ppo_max_token_len_per_gpu": None, "ppo_micro_batch_size_per_gpu": 3},
            ["A.ppo_max_token_len_per_gpu"],
        ),
        (
            "A.use_dynamic_bsz=False A.ppo_micro_batch_size_per_gpu=3",
            {"ppo_max_token_len_per_gpu": None, "ppo_micro_batch_size_per_gpu": 3},
            [],
        ),
    ],
)
def test_the_micro_batch_rule_is_the_one_that_verl_would_use(words, values, idle, tmp_path):
    words = f"{words} A.use_kl_loss=True R.n=2 R.name=vllm algorithm.adv_estimator=grpo"
    words = words.replace("A.", "actor_rollout_ref.actor.").replace("R.", "actor_rollout_ref.rollout.")
    found = import_script(f"{LAUNCH} {words}", "x.sh")
    config = config_of(found, tmp_path)
    assert {key: getattr(config.actor, key) for key in values} == values
    assert config.ref.log_prob_max_token_len_per_gpu == values["ppo_max_token_len_per_gpu"]
    assert [item.key for item in found.report.idle] == [key.replace("A.", "actor_rollout_ref.actor.") for key in idle]


@pytest.mark.parametrize("part", ["clip_ratio_low", "clip_ratio_high", "loss_agg_mode", "use_kl_loss"])
def test_a_part_that_the_script_does_not_decide_is_left_to_the_preset(part):
    key = f"actor_rollout_ref.actor.{part}"
    grpo = "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4"
    found = import_script(f"{LAUNCH} {NEEDED} {grpo} {key}=$(cat settings)", "x.sh", extends="smoke-ppo")
    assert key in texts(found.report.undecided)
    assert part not in yaml_text.read(found.text).get("actor", {})


def test_algorithms_are_named_by_the_preset_that_agrees_best():
    def name(words: str) -> tuple[str, object]:
        file = yaml_text.read(import_script(f"{LAUNCH} {NEEDED} {words}", "x.sh", extends="smoke-ppo").text)
        return file.get("algorithm", {}).get("name", "ppo"), file.get("actor", {}).get("loss_agg_mode")

    grpo = "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4"
    assert name("") == ("ppo", None)
    assert name(grpo) == ("grpo", None)
    assert name(f"{grpo} actor_rollout_ref.actor.loss_agg_mode=token-sum") == ("grpo", "token-sum")
    norm = "algorithm.norm_adv_by_std_in_grpo=False actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm"
    assert name(f"{grpo} {norm}") == ("dr_grpo", None)


@pytest.mark.parametrize(
    ("words", "told", "estimator"),
    [
        ("", {"loss_mode": "k3", "use_policy_gradient": False, "use_task_rewards": True}, "gae"),  # veRL's defaults
        ("L.use_task_rewards=False algorithm.adv_estimator=grpo", {"use_task_rewards": False}, None),
        ("L.use_task_rewards=True algorithm.adv_estimator=rloo R.n=4", {"use_task_rewards": True}, "rloo"),
        ("L.loss_mode=k1 L.use_policy_gradient=True", {"loss_mode": "k1", "use_policy_gradient": True}, "gae"),
    ],
)
def test_a_launch_that_distils_has_the_algorithm_for_it_with_its_teachers(words, told, estimator, tmp_path):
    words = words.replace("L.", "distillation.distillation_loss.").replace("R.", "actor_rollout_ref.rollout.")
    teacher = "distillation.teacher_models.teacher_model.model_path=/teacher"
    found = import_script(f"{LAUNCH} {NEEDED} distillation.enabled=True {teacher} {words}", "x.sh")
    config = config_of(found, tmp_path)
    assert (config.algorithm.name, config.distillation.teacher_models["teacher_model"].model_path) == (
        "opd",
        "/teacher",
    )
    assert {key: getattr(config.distillation, key) for key in told} == told
    assert yaml_text.read(found.text)["algorithm"].get("adv_estimator") == estimator
    assert texts(found.report.renamed)["distillation.enabled"] == "opd"


def test_teachers_are_told_apart_and_need_no_engine(tmp_path):
    each = "+distillation.teacher_models.N.key=N +distillation.teacher_models.N.model_path=/N"
    both = " ".join(each.replace("N", name) for name in ("math", "code"))
    engine = "distillation.teacher_models.math.inference.name"
    words = f"distillation.enabled=True {both} {engine}=vllm data.val_files=null"
    found = import_script(f"{LAUNCH} {NEEDED} {words}", "x.sh")
    taught = config_of(found, tmp_path).distillation.teacher_models
    assert {name: (own.key, own.model_path) for name, own in taught.items()} == {
        "math": ("math", "/math"),
        "code": ("code", "/code"),
    }
    assert "needs no engine" in texts(found.report.without)[engine]


def test_the_penalty_of_long_answers_is_named_by_its_metric():
    found = import_script(f"{LAUNCH} {NEEDED} reward.overlong_buffer.log=True", "x.sh")
    assert "reward/overlong/mean" in texts(found.report.always)["reward.overlong_buffer.log"]


def test_values_that_only_break_the_check_are_kept_and_told():
    found = import_script(f"{LAUNCH} {NEEDED} algorithm.adv_estimator=steered data.train_batch_size=many", "x.sh")
    file = yaml_text.read(found.text)
    assert (file["algorithm"]["adv_estimator"], file["data"]["train_batch_size"]) == ("steered", "many")
    assert {problem.partition("=")[0] for problem in found.report.breaks} == {
        "algorithm.adv_estimator",
        "data.train_batch_size",
    }


def test_names_that_look_like_numbers_stay_text_and_references_are_translated(tmp_path):
    words = "trainer.experiment_name=007 trainer.project_name=1e5 data.val_files='${data.train_files}'"
    found = import_script(f"{LAUNCH} {NEEDED} {words} data.seed='${{hydra:job.num}}'", "x.sh")
    config = config_of(found, tmp_path)
    assert (config.trainer.experiment_name, config.trainer.project_name) == ("007", "1e5")
    assert config.data.val_files == config.data.train_files
    assert "has no counterpart here" in texts(found.report.undecided)["data.seed"]


def test_one_of_several_launches_is_read():
    script = (
        f"{LAUNCH} {NEEDED} trainer.seed=1\n{LAUNCH} {NEEDED} trainer.seed=2\npython -m verl.trainer.main_eval a=b\n"
    )
    assert "seed: 1" in import_script(script, "x.sh").text
    assert "seed: 2" in import_script(script, "x.sh", launch=2).text
    assert any("line 2, 3 (--launch N)" in note for note in import_script(script, "x.sh").report.notes)
    for number, message in ((3, "trains nothing"), (4, "has 3 launches"), (0, "has 3 launches")):
        with pytest.raises(UserError, match=message):
            import_script(script, "x.sh", launch=number)
    with pytest.raises(UserError, match="starts no trainer of veRL"):
        import_script("echo hello", "x.sh")


KEYS = st.sampled_from([*leaf_types(), *FIXED, *RENAMED, *SUBTREES, "hydra.run.dir", "a@b", "model_engine", "x"])
VALUES = st.sampled_from(
    ["1", "-1", "1e-6", "null", "True", "x", "[a,1]", "{a: 1}", "[", "a,b", "$X", "$(x)", "'${data.seed}'", "", "é\x85"]
) | st.text(max_size=8)
OVERRIDES = st.tuples(st.sampled_from(["", "+", "~", "actor_rollout_ref."]), KEYS, VALUES)


@settings(max_examples=60)
@given(st.lists(OVERRIDES, max_size=4), st.sampled_from(["verl.trainer.main_ppo", "verl.trainer.sft_trainer"]))
@example([("", "data.train_batch_size", "[")], "verl.trainer.sft_trainer")  # a batch that is not decided
def test_no_launch_ends_in_a_traceback_and_the_file_is_yaml(overrides, module):
    words = [f"{sign}{key}={value}".replace("\x00", "") for sign, key, value in overrides]
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    found = import_script(f"python3 -m {module} {quoted}\n", "x.sh", extends="smoke")
    assert isinstance(yaml_text.read(found.text), dict)
    counted = {item.key.removeprefix("actor_rollout_ref.") for kind in WORDS for item in getattr(found.report, kind)}
    assert {key for _, key, _ in overrides} <= counted
