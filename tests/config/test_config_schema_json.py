"""The JSON Schema of rlx.yaml: it takes every profile, and agrees with the loader on what single keys take."""

import json
from pathlib import Path

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.conftest import ROOT
from verl_core.config import yaml_text
from verl_core.config.catalogue import KINDS, names
from verl_core.config.compose import profile_names
from verl_core.config.describe import fields
from verl_core.config.errors import UserError
from verl_core.config.json_schema import json_schema
from verl_core.config.key_checks import each_key
from verl_core.config.layers import read_layers
from verl_core.config.merge import assign, interpolate, overlay
from verl_core.config.schema import RlxConfig
from verl_core.config.typed import build, leaf_types, plain

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def node_at(key: str) -> dict:
    """The schema's node of a dotted key."""
    node = SCHEMA
    for step in key.split("."):
        section = node if "properties" in node else node["anyOf"][0]
        node = section["properties"][step]
    return node


def loader_takes(text: str, file: Path) -> bool:
    """Whether the loader takes a file, key by key; sums that do not add up are not its schema's matter."""
    file.write_text(text, encoding="utf-8")
    try:
        layers = read_layers(None, file)[1]
    except UserError:
        return False
    tree, problems = plain(RlxConfig()), [problem for layer in layers for problem in layer.problems]
    for layer in layers:
        overlay(tree, layer.tree)
    config = build(RlxConfig, interpolate(tree)[0], "", problems)
    return not problems and not each_key(config, {})


def test_it_is_a_schema_of_its_dialect_and_plain_json():
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    assert json_schema() == SCHEMA


@pytest.mark.parametrize("profile", profile_names())
def test_every_profile_validates(profile):
    tree = yaml_text.read((ROOT / "profiles" / f"{profile}.yaml").read_text(encoding="utf-8"))
    assert [error.message for error in VALIDATOR.iter_errors(tree)] == []


def test_every_default_validates():
    assert [error.json_path for error in VALIDATOR.iter_errors(plain(RlxConfig()))] == []


def test_every_key_has_its_words_and_its_default():
    defaults = plain(RlxConfig())
    for key, field in fields().items():
        if "NAME" in key or "[N]" in key:
            continue
        node = node_at(key)
        assert node["description"] == field.meaning and field.meaning, key
        if not field.section:
            value = defaults
            for step in key.split("."):
                value = value[step]
            assert node["default"] == value, key
    for key, kind in KINDS.items():
        offered = [name for node in node_at(key)["anyOf"] for name in node.get("enum", ())]
        assert offered == list(fields()[key].choices) and set(offered) <= set(names(kind)), key


def test_an_editor_is_not_offered_verls_paths():
    assert "actor_rollout_ref" not in json.dumps(SCHEMA)
    assert set(SCHEMA["properties"]) == {"extends", *plain(RlxConfig())}


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("extends: smoke", True),
        ("extends: [smoke]", False),
        ("extends: ''", False),
        ("actor: {optim: {lr: 1e-6}}", True),
        ("actor: {optim: {lr: '1e-6'}}", False),
        ("actor: {optim: {lr: 0}}", False),
        ("actor: {optim: {lrr: 1e-6}}", False),
        ("actor: {optim: {betas: [0.9, 0.95]}}", True),
        ("actor: {optim: {betas: [0.9]}}", False),
        ("actor: {optim: {betas: [0.9, 1.0]}}", False),
        ("actor:", True),
        ("actor: {optim: }", True),
        ("actor: 3", False),
        ("actor: {optim: {lr: '${critic.optim.lr}'}}", True),
        ("rollout: {n: '${data.train_batch_size}'}", True),
        ("rollout: {n: 0}", False),
        ("rollout: {top_k: -1}", True),
        ("rollout: {top_k: 0}", False),
        ("rollout: {top_p: 0}", False),
        ("rollout: {top_p: 1}", True),
        ("rollout: {engine: vlm}", False),
        ("rollout: {old_log_prob: false}", False),
        ("algorithm: {name: grpo}", True),
        ("algorithm: {name: gprо}", False),
        ("trainer: {logger: console}", True),
        ("trainer: {logger: [console, wandb]}", True),
        ("trainer: {logger: [console, wandbb]}", False),
        ("trainer: {seed: null}", False),
        ("data: {seed: null}", True),
        ("data: {val_files: [a, b]}", True),
        ("data: {val_files: ''}", False),
        ("model: {path: ''}", False),
        ("purpose: ''", True),
        ("reward: {reward_kwargs: {any: {thing: [1, null]}}}", True),
        ("reward: {reward_kwargs: 3}", False),
        ("launch: {env: {A: '0'}}", True),
        ("launch: {env: {A: 0}}", False),
        ("cluster: {pools: {a: {gpus: 2}}}", True),
        ("cluster: {pools: {a: {gpu: 2}}}", False),
        ("cluster: {pools: {a: }}", False),
        ("warmup: {phases: [{steps: 3, optim: {lr: 1}}]}", True),
        ("warmup: {phases: [{steps: 0}]}", False),
        ("warmup: {phases: [{optim: }]}", False),
    ],
)
def test_loader_and_schema_agree(text, taken, tmp_path):
    tree = yaml_text.read(text)
    assert VALIDATOR.is_valid(tree) is taken
    assert loader_takes(text, tmp_path / "rlx.yaml") is taken


KEYS = st.sampled_from(
    [*leaf_types(), "actor.lrr", "actor.optim", "cluster.pools.a.gpus", "cluster.pools.a.x", "launch.env.A"]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 70000)
    | st.sampled_from([0.5, 1.5, -0.5, 1e-6, 1e12 + 0.5])  # no whole one: JSON takes 1e12 for an int
    | st.sampled_from(["", "x", "auto", "fsdp", "vllm", "grpo", "gae", "k3", "token-mean", "console", "float32", "1"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "steps", "lr", "gpus"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=500)
@given(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=2))
def test_loader_and_schema_agree_on_random_keys_and_values(tmp_path_factory, settings_):
    tree: dict = {}
    for key, value in settings_:
        try:
            assign(tree, key.split("."), value)
        except ValueError:  # a name inside a list that took a mapping's place: there is no such file
            reject()
    assert VALIDATOR.is_valid(tree) is loader_takes(yaml_text.write(tree), tmp_path_factory.getbasetemp() / "rlx.yaml")
