"""What is written reads back equal; the loader of the written file is as strict as that of a profile."""

import dataclasses
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.config import yaml_text
from verl_core.config.compose import load_tree, resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.merge import interpolate
from verl_core.config.schema import FACTS, ModelConfig, RlxConfig
from verl_core.config.typed import build, fields_of, leaves
from verl_core.config.write import HEADER, dump, load

ODD = [
    "",
    "null",
    "~",
    "off",
    "yes",
    "true",
    "1e-6",
    "1_000",
    "007",
    "0x10",
    "1:30",
    "2026-01-01",
    "<<",
    "=",
    "a: b",
    "???",
]
ODD += ["${x}", "- a", "#c", "'", '"', " pad ", "line\nbreak", "tab\t", "\u2212", "\u2028", "\u00e9", "[a", "{a", "*a"]
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12) | st.sampled_from(ODD)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
ANY = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


def of_type(tp) -> st.SearchStrategy:
    """Values of a schema type."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if dataclasses.is_dataclass(tp):
        return st.builds(tp, **{name: of_type(inner) for name, inner in fields_of(tp).items()})
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is dict:
        return st.dictionaries(TEXT, of_type(args[1]), max_size=2)
    if origin is list:
        return st.lists(of_type(args[0]), max_size=2)
    if origin is tuple:
        return st.tuples(*map(of_type, args))
    if args:
        return st.one_of(*map(of_type, args))
    simple = {
        str: TEXT,
        bool: st.booleans(),
        int: st.integers(),
        float: st.floats(allow_nan=False, allow_infinity=False),
    }
    return st.none() if tp is type(None) else simple.get(tp, ANY)


def without_module(config: RlxConfig) -> RlxConfig:
    """A file of algorithms is read as soon as a configuration names it; chance names none that is there."""
    config.algorithm.module = None
    return config


@settings(max_examples=30)
@given(of_type(RlxConfig).map(without_module))
def test_write_then_read_is_the_identity(config):
    tree, problems = interpolate(yaml_text.read(dump(config)))
    again = load_tree(tree, "written")
    assert again == config and problems == []
    assert dump(again) == dump(config)


@settings(max_examples=50)
@given(st.text("\\\\${}a'\" ", max_size=8))
def test_text_that_looks_like_an_interpolation_survives(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    config = RlxConfig(purpose=text, model=ModelConfig(override_config={"list": [text]}))
    path.write_text(dump(config), encoding="utf-8")
    assert load(path) == config
    layer = interpolate(yaml_text.read(path.read_text(encoding="utf-8")))[0]
    assert load_tree(layer, "as a layer") == config


@settings(max_examples=300)
@given(ANY)
def test_yaml_text_is_lossless(value):
    again = yaml_text.read(yaml_text.write(value))
    assert again == value and repr(again) == repr(value)


def test_file_round_trip_with_explicit_nulls(tmp_path):
    words = ["trainer.num_threads=null", "data.val_files=null", "trainer.parity=off", "trainer.project_name=1e-6"]
    words.append(r"purpose='costs \${5}'")
    config = resolve("smoke", words).config
    path = tmp_path / "config.yaml"
    path.write_text(dump(config), encoding="utf-8")
    text = path.read_text()
    assert text.startswith(HEADER) and "num_threads: null" in text and "val_files: null" in text
    assert load(path) == config
    assert resolve(str(path)).config == config == resolve(None, file=path).config, (
        "a written file is also a profile that starts the same run"
    )
    path.write_text(dump(effective(config)), encoding="utf-8")
    assert effective(load(path)) == effective(config)


def test_every_key_is_written():
    written = dict(leaves(yaml_text.read(dump(RlxConfig()))))
    assert {path.split(".")[0] for path in written} == set(fields_of(RlxConfig)) - set(FACTS)
    facts = dict.fromkeys(FACTS, "said")
    assert facts.items() <= yaml_text.read(dump(RlxConfig(**facts))).items()
    assert "rollout.val_kwargs.do_sample" in written and written["cluster.pools"] == {}


def test_a_damaged_file_names_itself_and_every_problem(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(dump(RlxConfig()).replace("seed: 0", "seed: zero").replace("\nwarmup:", "\nwarmupp:"))
    with pytest.raises(UserError) as caught:
        load(path)
    assert "2 problems" in caught.value.message and caught.value.message.count(str(path)) == 2
    path.write_text("a: [")
    with pytest.raises(UserError, match="cannot read"):
        load(path)
    with pytest.raises(UserError, match="no configuration"):
        load(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("True", True),
        ("1e-6", 1e-6),
        ("1E5", 1e5),
        (".5", 0.5),
        ("010", 10),
        ("-3", -3),
        ("12:30:45", "12:30:45"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("0x10", "0x10"),
        ("'0'", "0"),
        ("~", None),
        ("", None),
        ("1.2.3", "1.2.3"),
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(text, value):
    found = yaml_text.read(text)
    assert found == value and type(found) is type(value)


def test_the_loader_changes_nothing_but_int_to_float():
    problems = []
    assert build(float, 1, "x", problems) == 1.0 and not problems
    for tp, value in [
        (int, 1.0),
        (int, True),
        (float, True),
        (float, "1"),
        (str, 1),
        (bool, 0),
        (bool, "true"),
        (str, None),
    ]:
        problems = []
        build(tp, value, "x", problems)
        assert len(problems) == 1, (tp, value)
