"""No word on the command line and no file ends in a traceback, in exit code 70, or as a value of another type; what is
accepted reads back identical from what is written."""

import contextlib
import io
import math
import sys

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rlx.main import main
from verl_core.config import write, yaml_text
from verl_core.config.compose import Resolved, resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.typed import leaf_types, leaves, plain
from verl_core.config.verl_keys import FIXED, RENAMED, SUBTREES

KEYS = st.sampled_from([*leaf_types(), *FIXED, *RENAMED, *SUBTREES, "actor", "data", "cluster.pools.main", ""])
PREFIXES = st.sampled_from(["", "", "", "+", "~", "actor_rollout_ref.", "+actor_rollout_ref."])
ENDINGS = st.sampled_from(["", "", "", "x", ".y", "[0]", "[7].steps", ".0"])
SCALARS = st.sampled_from(
    ["1", "0", "-1", "1e-6", "1.0", "007", "1_000", "0x10", "null", "~", "", "true", "True", "off", "x", "a.b", "grpo"]
)
ODD = st.sampled_from(
    ["[1, 2]", "{a: 1}", "[a", "${", "${x}", "${data.seed}", "${oc.env:HOME}", "${actor}", "${trainer.seed}", r"\${a}"]
) | st.sampled_from(
    ["&a [*a]", "!!python/object:x", "!!binary aGk=", "{1: 2}", "{{a}}", "1" * 400, "{phases: [{steps: 3}]}", "[[[["]
)
ODD |= st.sampled_from(
    [
        "- a",
        ".nan",
        ".inf",
        "1e999",
        "-1e308",
        str(2**63),
        "{}",
        "[]",
        "<<: 1",
        "{<<: 3}",
        "\x00",
        "\ud800",
        "'",
        '"\\x"',
    ]
)
ODD |= st.sampled_from(
    ["\ufeff1", "\t1", "1\t", "\u20281", "\u0661", "\u2212" + "1", "a\u0301", "\U0001f600", "#", "1 # x"]
)
VALUES = SCALARS | ODD | st.text(max_size=20)
WORDS = st.builds(lambda *parts: "".join(parts), PREFIXES, KEYS, ENDINGS, st.just("="), VALUES) | st.text(max_size=30)
SECTIONS = st.sampled_from(
    ["actor", "data", "extends", "actor_rollout_ref", "seed", "optim", "lr", "trainer", "launch", "env"]
)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | VALUES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(SECTIONS, inner, max_size=3),
)
TEXTS = st.lists(
    st.sampled_from(
        [
            "extends: smoke\n",
            "\ufeff",
            "actor:\n",
            "  shuffle: true\n",
            "\tshuffle: true\n",
            "trainer: {seed: 1}\n",
            "trainer: {seed: 2}\n",
            "trainer:\n  seed: ${data.seed}\n",
            "data:\n  seed: ${trainer.seed}\n",
            "reward: &r {reward_kwargs: {a: *r}}\n",
            "launch: {env: &e {A: '0'}}\n",
            "reward: {reward_kwargs: {e: *e, f: *e}}\n",
            "--- \n",
            "...\n",
            "? [a, b]\n: 1\n",
            "%YAML 1.1\n",
            "rollout: !!set {a}\n",
            "model: {path: >\n  x\n  y}\n",
            "purpose: |\n  a\n\n  b\n",
            "#\u0000\n",
        ]
    ),
    max_size=4,
).map("".join)


def reads_back(config, file) -> None:
    """Written, read and written again it is the same, as a run's file and as a layer."""
    file.write_text(write.dump(config), encoding="utf-8")
    again = write.load(file)
    assert again == config and write.dump(again) == write.dump(config)
    assert [(key, type(value)) for key, value in leaves(plain(again))] == [
        (key, type(value)) for key, value in leaves(plain(config))
    ]


def ends_well(folder, *args, **kwargs) -> Resolved | None:
    try:
        resolved = resolve(*args, **kwargs)
    except UserError as error:
        assert error.message and error.hint
        return None
    effective(resolved.config)
    reads_back(resolved.config, folder / "written.yaml")
    return resolved


def command(*words: str) -> tuple[int, str, str]:
    """The whole `rlx` command in this process: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["rlx", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code, out.getvalue(), err.getvalue()
    finally:
        sys.argv = before
    raise AssertionError("the command did not exit")


def command_ends_well(*words: str) -> None:
    code, out, err = command(*words)
    assert code in (0, 1, 2), (words, code, err)
    assert "Traceback" not in err and "fault of rlx" not in err, (words, err)
    assert code == 0 or err or out, words


def is_as_given(text: str, found: object) -> bool:
    """Whether a value is what was typed: text as it stands, or YAML's value of the same type. An int may stand for a
    float, and one word for a list of one."""
    if found == text.strip() or (found is None and text.strip() in ("", "null", "~")):
        return True
    value = yaml_text.read(text)
    if isinstance(found, float) and type(value) is int:
        return math.isclose(found, value)
    if isinstance(found, list) and isinstance(value, str):
        return found == [value]
    return _same(found, value)


def _same(found: object, value: object) -> bool:
    if isinstance(found, list) and isinstance(value, list) and len(found) == len(value):
        return all(
            _same(a, b) or (isinstance(a, float) and type(b) is int and a == b)
            for a, b in zip(found, value, strict=True)
        )
    return type(found) is type(value) and found == value


@settings(max_examples=150)
@given(st.lists(WORDS, max_size=4))
def test_random_words(tmp_path_factory, words):
    ends_well(tmp_path_factory.getbasetemp(), "smoke", words)


@settings(max_examples=150)
@given(st.sampled_from([key for key, tp in leaf_types().items()]), SCALARS | ODD)
@example("trainer.seed", "1.0")
@example("trainer.experiment_name", "007")
@example("actor.optim.lr", "1")
@example("launch.env.A", "0")
@example("trainer.logger", "console")
def test_a_value_that_is_accepted_is_the_one_given(tmp_path_factory, key, text):
    if "${" in text:
        return
    resolved = ends_well(tmp_path_factory.getbasetemp(), "smoke", [f"{key}={text}"])
    if resolved is None:
        return
    found = plain(resolved.config)
    for step in key.split("."):
        found = found[step]
    assert is_as_given(text, found) or isinstance(found, dict), (key, text, found)


@settings(max_examples=120)
@given(TREES)
def test_random_trees_as_files(tmp_path_factory, tree):
    folder = tmp_path_factory.getbasetemp()
    with contextlib.suppress(UnicodeEncodeError):
        (folder / "rlx.yaml").write_text(yaml_text.write(tree), encoding="utf-8")
        ends_well(folder, None, file=folder / "rlx.yaml")


@settings(max_examples=120)
@given(TEXTS | st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "surrogateescape")) | st.text(max_size=60))
def test_random_texts_as_files(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp()
    (folder / "rlx.yaml").write_bytes(text.encode("utf-8", "surrogateescape" if text.isascii() else "replace"))
    ends_well(folder, None, file=folder / "rlx.yaml")


@settings(max_examples=60)
@given(
    st.sampled_from(["config show smoke", "config check smoke", "profile show smoke", "train --dry-run smoke"]),
    st.lists(WORDS, max_size=3),
    st.lists(st.sampled_from(["--json", "--origin", "--effective", "--lenient", "--changed"]), max_size=2),
)
def test_random_words_through_the_command(words, settings_, flags):
    command_ends_well(*words.split(), *settings_, *flags)


@settings(max_examples=40)
@given(KEYS | st.text(max_size=12), st.lists(WORDS, max_size=2))
def test_random_keys_are_explained_or_refused(key, words):
    command_ends_well("config", "explain", "smoke" if key.startswith("-") else key, "smoke", *words)
    command_ends_well("config", "schema", "--", key)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS | TREES.map(lambda tree: yaml_text.write(tree)), st.lists(WORDS, max_size=1))
def test_random_files_through_the_command(tmp_path_factory, text, words):
    file = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    file.write_text(text, encoding="utf-8", errors="replace")
    command_ends_well("config", "check", str(file), *words, "--json")
    command_ends_well("config", "diff", "smoke", str(file), *words)
