"""What a configuration says of a reward model and a judge: faults, keys without effect, veRL's names, the plan."""

from pathlib import Path

import pytest

from tests.controller.controller_tiny import tiny_model
from verl_core.config.checks import check
from verl_core.config.compose import resolve
from verl_core.config.effective import effective, get, role_pools, trained_roles
from verl_core.config.errors import ConfigError
from verl_core.config.explain import explain
from verl_core.config.keys import translate
from verl_core.config.model_roles import SCORING, frozen_paths, model_of, role_settings
from verl_core.config.typed import Problem
from verl_core.config.verl_import import import_script
from verl_core.planning.gpus import GPUS
from verl_core.planning.plan import planned

MODEL, JUDGE = "reward.reward_model", "reward.judge"
SCORED = ["reward.scorers={task: 1, reward_model: 0.5}", f"{MODEL}.path=/models/rm"]
AN_ENDPOINT = [f"{JUDGE}.url=http://h:8000/v1", f"{JUDGE}.model=m"]
JUDGED = ["reward.scorers={judge: 1}", *AN_ENDPOINT]


def said(*keys: str) -> list[str]:
    """Errors and warnings of the smoke profile with these keys."""
    try:
        return resolve("smoke", list(keys)).warnings
    except ConfigError as error:
        return error.problems


@pytest.mark.parametrize("keys", [SCORED, JUDGED, [*JUDGED, f"{JUDGE}.labels={{good: 1, poor: 0}}"]])
def test_nothing_is_wrong_with_these(keys):
    assert said(*keys) == []


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["reward.scorers={reward_model: 1}"], f"set {MODEL}.path to its folder or hub name"),
        ([*SCORED, f"{MODEL}.path=builtin:tiny"], "there is no builtin reward model"),
        ([*SCORED, f"{MODEL}.max_token_len_per_gpu=512", f"{MODEL}.max_length=512"], "511 tokens for a conversation"),
        (
            [*SCORED, f"{MODEL}.max_token_len_per_gpu=512", f"{MODEL}.micro_batch_size_per_gpu=2"],
            "exclude each other: set one of them to null",
        ),
        ([*SCORED, f"{MODEL}.pool=other"], "no such pool; cluster.pools has main"),
        ([*SCORED, f"{MODEL}.max_length=0"], "is not in [1, 1e9]"),
        (["reward.scorers={judge: 1}"], f"set {JUDGE}.url and .model, or {JUDGE}.engine=hf"),
        (["reward.scorers={judge: 1}", f"{JUDGE}.engine=hf"], f"set {JUDGE}.path"),
        (["reward.scorers={judge: 1}", AN_ENDPOINT[0]], f"set {JUDGE}.model to the name"),
        ([*JUDGED, f"{JUDGE}.path=/m"], f"set {JUDGE}.engine=hf"),
        ([*JUDGED, f"{JUDGE}.engine=hf", f"{JUDGE}.path=/m"], "is of an endpoint"),
        *(
            ([*JUDGED, f"{JUDGE}.url={url}"], "expected an address like http://host:8000/v1")
            for url in ("host:8000", "ftp://h/v1", "http://", "http://h:x/v1", "http://h/v1?a=b")
        ),
        ([*JUDGED, f"{JUDGE}.url=http://h/v1/chat/completions/"], "without /chat/completions"),
        ([*JUDGED, f"{JUDGE}.scale=[5, 5]"], "the lowest number comes first"),
        ([*JUDGED, f"{JUDGE}.scale=[0, 1e12]"], "is not in"),
        ([*JUDGED, f"{JUDGE}.labels={{good: 1}}"], "at least two labels"),
        ([*JUDGED, f"{JUDGE}.labels={{good: 1, Good: 0}}"], "differ in nothing but their case"),
        ([*JUDGED, f"{JUDGE}.labels={{' good': 1, poor: 0}}"], "is no plain word"),
        ([*JUDGED, f"{JUDGE}.retries=-1"], "is not in"),
        ([*JUDGED, f"{JUDGE}.extra_body={{n: 2, stream: true}}"], "n, stream cannot be set there"),
        ([*JUDGED, f"{JUDGE}.timeout_s=0"], "is not in"),
        (["reward.scorers={judge: {weight: 1, scale: 3}}", *AN_ENDPOINT], "its settings are the keys of reward.judge"),
        # without effect
        ([f"{MODEL}.path=/m"], f"{MODEL}.path (command line) has no effect; for that set reward.scorers="),
        (AN_ENDPOINT, "have no effect; for that set reward.scorers={task: 1, judge: 1}"),
        ([*JUDGED, f"{JUDGE}.labels={{a: 1, b: 0}}", f"{JUDGE}.scale=[0, 5]"], f"for that set {JUDGE}.labels={{}}"),
        ([*JUDGED, f"{JUDGE}.instruction=Be kind.", f"{JUDGE}.instruction_file=f"], "instruction_file=null"),
        (
            ["reward.scorers={judge: 1}", f"{JUDGE}.engine=hf", f"{JUDGE}.path=/m", f"{JUDGE}.retries=9"],
            f"{JUDGE}.retries (command line) has no effect",
        ),
    ],
)
def test_what_is_said(keys, expected):
    found = said(*keys)
    assert any(expected in line for line in found), found


def test_keys_that_are_rlxs_alone_name_no_verl_key():
    assert explain(f"{JUDGE}.url").verl == ()
    assert set(explain(f"{MODEL}.path").verl) >= {"reward.reward_model.model_path", "reward_model.model.path"}
    assert f"{MODEL}.path" not in explain(f"{MODEL}.path").verl


def test_the_scoring_model_is_a_frozen_role_with_settings_of_its_own():
    config = effective(resolve("smoke", [*SCORED, f"{MODEL}.dtype=bfloat16"]).config)
    assert role_pools(config)[SCORING] == "main" and trained_roles(config) == ("actor",)
    settings = role_settings(config, SCORING)
    assert settings.fsdp_config.dtype == "bfloat16" and settings.fsdp_config.param_offload
    assert model_of(config, SCORING, "/policy") == "/models/rm" == frozen_paths(config)[f"{MODEL}.path"]
    own = (settings.ppo_micro_batch_size_per_gpu, settings.ppo_max_token_len_per_gpu)
    assert own == (config.actor.ppo_micro_batch_size_per_gpu, config.actor.ppo_max_token_len_per_gpu)
    apart = ["cluster.pools={main: {gpus: 1}, scores: {gpus: 1}}", f"{MODEL}.pool=scores"]
    assert role_pools(effective(resolve("smoke", [*SCORED, *apart]).config))[SCORING] == "scores"
    assert SCORING not in role_pools(effective(resolve("smoke-rm").config))


@pytest.mark.parametrize(
    ("verl", "ours", "value"),
    [
        ("reward.reward_model.model_path=/m", f"{MODEL}.path", "/m"),
        ("reward_model.model.path=/m", f"{MODEL}.path", "/m"),
        ("reward_model.micro_batch_size_per_gpu=4", f"{MODEL}.micro_batch_size_per_gpu", 4),
        ("reward_model.forward_max_token_len_per_gpu=9000", f"{MODEL}.max_token_len_per_gpu", 9000),
        ("reward_model.max_length=4096", f"{MODEL}.max_length", 4096),
        ("reward_model.model.fsdp_config.param_offload=false", f"{MODEL}.param_offload", False),
    ],
)
def test_verls_keys_of_a_reward_model(verl, ours, value):
    given = [*SCORED[:1], *(SCORED[1:] if "path" not in verl else []), verl]
    assert get(resolve("smoke", given).config, ours) == value


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("reward.reward_model.enable", True, "reward.scorers={reward_model: 1}"),
        ("reward_model.enable", True, "reward.scorers={reward_model: 1}"),
        ("reward.reward_model.enable_resource_pool", True, f"cluster.pools and {MODEL}.pool"),
        ("reward.reward_model.nnodes", 2, f"cluster.pools and {MODEL}.pool"),
        ("reward.reward_model.n_gpus_per_node", 4, f"cluster.pools and {MODEL}.pool"),
        ("reward.reward_model.rollout.tensor_model_parallel_size", 2, "needs no engine"),
        ("reward_model.rollout.name", "vllm", "needs no engine"),
        ("reward_model.model.input_tokenizer", "/t", "its own chat template"),
        ("reward_model.something", 1, "the reward model's keys are those of reward.reward_model"),
    ],
)
def test_what_has_no_counterpart_says_what_takes_its_place(key, value, says):
    found = translate(key, value)
    assert isinstance(found, Problem) and says in found.text


def test_a_script_with_a_reward_model_is_scored_by_it_unless_a_function_of_its_own_does(tmp_path: Path):
    start = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=/d/a.parquet "
    start += "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.n=4 "
    model = "reward.reward_model.enable=True reward.reward_model.model_path=/models/rm "
    found = import_script(start + model + "reward.reward_model.rollout.name=vllm", "run.sh")
    file = tmp_path / "rlx.yaml"
    file.write_text(found.text)
    config = resolve(None, file=file).config
    assert config.reward.scorers == {"reward_model": 1.0} and config.reward.reward_model.path == "/models/rm"
    assert found.report.breaks == [] and "needs no engine" in found.report.without[0].text
    own = import_script(start + model + "reward.custom_reward_function.path=mine.py", "run.sh")
    assert "\n  scorers:" not in own.text and "scores alone" in own.report.without[0].text
    assert [item.key for item in own.report.idle] == ["reward.reward_model.model_path"]


def test_the_plan_counts_the_reward_model_beside_the_engine(tmp_path: Path):
    policy = tiny_model(tmp_path / "policy")
    base = ["rollout.engine=vllm", "trainer.device=cuda", f"model.path={policy}", "warmup.phases=[]"]
    scored = ["reward.scorers={reward_model: 1}", f"{MODEL}.path={policy}", f"{MODEL}.param_offload=false"]
    without, with_it = (planned(resolve("smoke", [*base, *more]).config, GPUS["H200"]) for more in ([], scored))
    (scores,) = (phase for phase in with_it.phases if phase.phase == "scores")
    rollout = {id(plan): next(p for p in plan.phases if p.phase == "rollout") for plan in (without, with_it)}
    assert scores.role == "reward model" and scores.seconds > 0
    assert scores.memory.others > rollout[id(with_it)].memory.kv_cache > 1e9  # the engine keeps its cache meanwhile
    assert rollout[id(with_it)].memory.others > rollout[id(without)].memory.others
    assert check(resolve("smoke", [*base, *scored]).config, {}, []).errors == []
