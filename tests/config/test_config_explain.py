"""What is said about keys: the schema's words, who set them, what wins, what gives them effect."""

import re

import pytest

from verl_core.config.catalogue import entry, names
from verl_core.config.compose import resolve
from verl_core.config.derived import derived
from verl_core.config.describe import field_at, fields
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.explain import Step, explain, here, value_at
from verl_core.config.idle_rules import RULES
from verl_core.config.typed import MISSING, leaf_types, leaves, plain
from verl_core.config.unbuilt import RUNS_TODAY, only_today, unbuilt


def test_every_key_has_a_place_with_words():
    assert set(leaf_types()) <= set(fields())
    for key, field in fields().items():
        assert field.meaning and field.meaning.rstrip(")").endswith((".", "?")), key
        assert field_at(key) is field
        assert field.section or field.words


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("actor.optim.lr", "actor.optim.lr"),
        ("actor", "actor"),
        ("warmup.phases[3].optim.lr", "warmup.phases[N].optim.lr"),
        ("warmup.phases[3]", "warmup.phases"),
        ("cluster.pools.rollout.gpus", "cluster.pools.NAME.gpus"),
        ("cluster.pools.rollout", "cluster.pools"),
        ("reward.reward_kwargs.a.b", "reward.reward_kwargs"),
        ("launch.env.NCCL_DEBUG", "launch.env"),
        ("trainer.logger[0]", "trainer.logger"),
        ("actor.optim.lrr", None),
        ("cluster.pools.rollout.gpu", None),
        ("", None),
    ],
)
def test_a_concrete_key_finds_its_place(key, place):
    found = field_at(key)
    assert (found.key if found else None) == place


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("rollout.top_k", "a whole number in [1, 1e9] or -1"),
        ("actor.optim.betas", "a list of 2 numbers in [0, 1)"),
        ("algorithm.name", "one of " + ", ".join(names("algorithm"))),
        ("critic.loss_agg_mode", "one of " + ", ".join(names("aggregation")) + " or null"),
        ("data.seed", "a whole number or null in [0, 9223372036854775808)"),
    ],
)
def test_types_in_words(key, words):
    assert fields()[key].words == words


def test_a_kl_estimator_that_cannot_be_a_reward_penalty_is_not_offered():
    assert "k3+" in fields()["actor.kl_loss_type"].choices
    assert "k3+" not in fields()["algorithm.kl_penalty"].choices
    assert [each.name for each in explain("algorithm.kl_penalty").entries] == list(
        fields()["algorithm.kl_penalty"].choices
    )


def test_every_layer_in_order_and_the_last_wins(tmp_path):
    file = tmp_path / "rlx.yaml"
    file.write_text("extends: gsm8k-grpo\nactor: {kl_loss_coef: 0.01, ppo_epochs: 2}\n")
    found = here("actor.kl_loss_coef", resolve(None, ["actor.kl_loss_coef=0.1"], file))
    assert found.value == 0.1 and found.idle == ()
    assert found.steps == (
        Step("default", 0.001),
        Step("profile gsm8k-grpo", 0.001),
        Step(str(file), 0.01),
        Step("command line", 0.1),
    )


def test_a_part_key_beats_the_preset_and_null_gives_way_to_it():
    key, preset = "actor.loss_agg_mode", Step("preset of algorithm.name=dr_grpo", "seq-mean-token-sum-norm")
    words = ["algorithm.name=dr_grpo"]
    assert here(key, resolve("smoke", words)).steps == (Step("default", None), preset)
    own = here(key, resolve("smoke", [*words, f"{key}=token-sum"]))
    assert own.value == "token-sum"
    assert own.steps == (Step("default", None), preset, Step("command line", "token-sum"))
    null = here(key, resolve("smoke", [*words, f"{key}=null"]))
    assert null.value == "seq-mean-token-sum-norm"
    assert null.steps == (Step("default", None), Step("command line", None), preset)


def test_a_derived_value_names_its_rule():
    found = here("rollout.max_model_len", resolve("smoke"))
    assert (found.value, found.steps[-1]) == (88, Step("their limits' sum", 88))
    assert here("cluster.executor", resolve("smoke", ["cluster.nproc=2"])).value == "ray"


def test_items_of_lists_and_mappings():
    words = ["warmup.phases[1].steps=7", "cluster.pools.main.gpus=1", "reward.reward_kwargs={method: flexible}"]
    resolved = resolve("smoke", words)
    found = here("warmup.phases[1].steps", resolved)
    assert found.steps == (Step("default", 200), Step("profile smoke", 80), Step("command line", 7))
    assert here("warmup.phases[9].steps", resolved).value is MISSING
    whole = here("warmup.phases", resolved)
    assert whole.steps[-1] == Step("command line", 7, "warmup.phases[1].steps")
    assert here("cluster.pools.main.gpus", resolved).steps == (Step("default", 1), Step("command line", 1))
    assert here("reward.reward_kwargs.method", resolved).steps == (Step("command line", "flexible"),)


def test_the_last_step_is_the_value_that_holds():
    for profile in ("smoke-ppo", "gsm8k-grpo", "dapo-qwen2.5-32b"):
        resolved = resolve(profile)
        tree = plain(effective(resolved.config))
        for key in set(leaf_types()) - {"warmup.phases"}:  # its items are filled up with defaults
            found = here(key, resolved)
            assert found.value == value_at(tree, key), (profile, key)
            assert found.steps[-1].item or found.steps[-1].value == found.value, (profile, key)


def test_what_makes_a_key_idle_here_and_anywhere():
    assert explain("critic.optim.muon_lr").switches == (
        "algorithm.adv_estimator=gae",
        "algorithm.name=ppo",
        "critic.optim.optimizer=muon",
    )
    assert here("critic.optim.muon_lr", resolve("smoke-ppo")).idle == ("critic.optim.optimizer=muon",)
    assert explain("trainer.seed").switches == ()
    covered = {key for key in leaf_types() if any(rule.covers(key) for rule in RULES)}
    assert all(explain(key).switches for key in covered)


@pytest.mark.parametrize(
    ("key", "verl"),
    [
        ("rollout.engine", ("actor_rollout_ref.rollout.name",)),
        ("actor.optim.lr", ("actor_rollout_ref.actor.optim.lr",)),
        ("actor.grad_clip", ("actor_rollout_ref.actor.grad_clip", "actor_rollout_ref.actor.optim.clip_grad")),
        ("cluster.nnodes", ("trainer.nnodes",)),
        ("data.train_batch_size", ("data.train_batch_size",)),
        ("trainer.parity", ()),
        ("actor.pool", ()),
        ("weights.type", ()),
        ("algorithm.preference.beta", ()),
        ("algorithm.prime.optim.lr", ()),
        ("algorithm.module", ()),
    ],
)
def test_verls_names(key, verl):
    assert explain(key).verl == verl


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("actor_rollout_ref.rollout.name", "rollout.engine"),
        ("trainer.n_gpus_per_node", "cluster.n_gpus_per_node"),
        ("actor_rollout_ref.actor.optim", "actor.optim"),
    ],
)
def test_a_key_of_verl_is_explained_under_its_name_here(key, ours):
    assert explain(key).key == ours


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("actor.optim.lrr", "did you mean actor.optim.lr?"),
        ("actor.lrr", "did you mean actor.optim.lr or"),
        ("actor_rollout_ref.actor.use_dynamic_bsz", "actor.ppo_max_token_len_per_gpu"),
        ("no such", "no such key"),
    ],
)
def test_what_cannot_be_explained(key, message):
    with pytest.raises(UserError, match=re.escape(message)):
        explain(key)


@pytest.mark.parametrize("words", [[], ["algorithm.name=dr_grpo"], ["rollout.engine=vllm"], ["cluster.nproc=2"]])
def test_every_derived_value_has_a_rule_in_words(words):
    resolved = resolve("smoke", words)
    asked, meant = dict(leaves(plain(resolved.config))), dict(leaves(plain(effective(resolved.config))))
    found = {each.key: each for each in derived(resolved.config)}
    assert set(found) == {key for key, value in meant.items() if key not in asked or asked[key] != value}
    for key, each in found.items():
        assert each.value == meant[key] and each.rule not in ("", "derived"), key
    presets = {key for key, each in found.items() if each.rule.startswith("preset of algorithm.name=")}
    assert presets <= set(entry("algorithm", resolved.config.algorithm.name).options)


def test_what_does_not_run_yet_is_said_of_its_key():
    assert set(RUNS_TODAY) <= set(leaf_types())
    assert only_today("actor.strategy") == "actor.strategy=fsdp" and only_today("rollout.engine") is None
    assert only_today("trainer.seed") is None and only_today("trainer.logger") is None
    assert list(unbuilt(effective(resolve("smoke").config))) == []
    (said,) = unbuilt(effective(resolve("smoke", ["actor.strategy=megatron"]).config))
    assert said.startswith("strategy=megatron")
