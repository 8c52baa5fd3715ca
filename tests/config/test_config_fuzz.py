"""No word on the command line and no file ends in a traceback."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.config import yaml_text
from verl_core.config.compose import Resolved, resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.typed import leaf_types
from verl_core.config.verl_keys import FIXED, RENAMED, SUBTREES

KEYS = st.sampled_from([*leaf_types(), *FIXED, *RENAMED, *SUBTREES, "actor", "data", "cluster.pools.main", ""])
PREFIXES = st.sampled_from(["", "", "", "+", "~", "actor_rollout_ref.", "+actor_rollout_ref."])
ENDINGS = st.sampled_from(["", "", "", "x", ".y", "[0]", "[7].steps", ".0"])
VALUES = st.sampled_from(
    ["1", "0", "-1", "1e-6", "null", "true", "off", "x", "a.b", "[1, 2]", "{a: 1}", "[a", "${", "${x}", "${data.seed}"]
) | st.sampled_from(
    ["${oc.env:HOME}", "${actor}", "&a [*a]", "!!python/object:x", "!!binary aGk=", "{1: 2}", "{{a}}", "1" * 400]
)
VALUES |= st.sampled_from(
    ["{phases: [{steps: 3}]}", "[[[[", "- a", ".nan", "1e999", "{}", "[]", "<<: 1", "{<<: 3}", "\x00", "\ud800", "'"]
)
VALUES |= st.text(max_size=20)
WORDS = st.builds(lambda *parts: "".join(parts), PREFIXES, KEYS, ENDINGS, st.just("="), VALUES) | st.text(max_size=30)


def ends_well(*args, **kwargs) -> None:
    try:
        resolved = resolve(*args, **kwargs)
    except UserError as error:
        assert error.message and error.hint
    else:
        assert isinstance(resolved, Resolved)
        effective(resolved.config)


@settings(max_examples=400, deadline=None)
@given(st.lists(WORDS, max_size=4))
def test_random_words(words):
    ends_well("smoke", words)


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers(-2, 3) | st.text(max_size=4) | VALUES,
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["actor", "data", "extends", "actor_rollout_ref", "seed", "optim", "trainer"]), inner
            )
        ),
    )
)
def test_random_trees_as_files(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("fuzz") / "rlx.yaml"
    with contextlib.suppress(UnicodeEncodeError):
        path.write_text(yaml_text.write(tree), encoding="utf-8")
        ends_well(None, file=path)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
def test_random_bytes_as_files(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "rlx.yaml"
    path.write_bytes(content)
    ends_well(None, file=path)
