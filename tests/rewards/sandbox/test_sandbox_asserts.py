"""Tests are taken apart without running them, and values cross the border as plain data."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_core.rewards.sandbox.asserts import Call, call_of, judge_calls, only_imports, program_names
from verl_core.rewards.sandbox.cases import calls_of, same_output
from verl_core.rewards.sandbox.inside.plain import TooMuch, decode, encode
from verl_core.rewards.sandbox.protocol import Limits, Outcome

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
SCALARS |= st.complex_numbers(allow_nan=False)
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
    ),
    max_leaves=20,
)


def nothing(value: object) -> Any:
    raise AssertionError(value)


def same(a: object, b: object) -> bool:
    return type(a) is type(b) and repr(a) == repr(b)


@given(VALUES)
@settings(max_examples=60)
def test_plain_data_arrives_as_it_was(value: object) -> None:
    arrived = decode(json.loads(json.dumps(encode(value, nothing))), nothing)
    assert arrived == value and type(arrived) is type(value)


@pytest.mark.parametrize("value", [range(3, 9, 2), int, dict, float("inf"), 2**70, -(2**70), -0.0, True, "\ud800\0"])
def test_rarer_data_arrives_too(value: object) -> None:
    assert same(decode(json.loads(json.dumps(encode(value, nothing))), nothing), value)


def test_a_subclass_arrives_as_what_it_extends() -> None:
    class Always(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    arrived = decode(encode([Always(3)], nothing), nothing)
    assert type(arrived[0]) is int and arrived == [3]


def test_an_object_stays_where_it_is() -> None:
    kept = [object()]
    assert encode((1, kept[0]), kept.index) == ["tuple", 1, ["object", 0]]
    assert decode(["tuple", 1, ["object", 0]], kept.__getitem__) == (1, kept[0])


@pytest.mark.parametrize(
    "data", [["list", *[1] * 9], ["set", ["tuple", 1, 2], ["tuple", 3, 4]], ["dict", *[[1, 2]] * 9]]
)
def test_more_than_expected_is_not_built(data: list) -> None:
    with pytest.raises(TooMuch):
        decode(data, nothing, 6)


@pytest.mark.parametrize(
    "data", [["?"], [], [1], {}, ["int", 3], ["range", "x"], ["set", ["list"]], ["bytes", "zz"], ["dict", 3]]
)
def test_what_encode_does_not_write_is_an_error(data: Any) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        decode(data, nothing)


@pytest.mark.parametrize(
    ("test", "call"),
    [
        ("assert f(1, [2]) == (3, {4})", Call("f", (1, [2]), {}, (3, {4}))),
        ("assert f(a=-1) == -1.5", Call("f", (), {"a": -1}, -1.5)),
        ("assert f('x') is True", Call("f", ("x",), {}, True, exact=True)),
        ("  assert (f()) == None  # text".strip(), Call("f", (), {}, None)),
        ("assert f(1) == 2, 'message'", Call("f", (1,), {}, 2)),
        ("assert f(1) is 1", None),
        ("assert f(x) == 1", None),
        ("assert f(*[1]) == 1", None),
        ("assert f(**{'a': 1}) == 1", None),
        ("assert f(1) == 1 == 1", None),
        ("assert f(1) != 2", None),
        ("assert f(1)", None),
        ("assert f(...) == 1", None),
        ("assert f(1) == [...]", None),
        ("assert o.f(1) == 2", None),
        ("assert f(1) == g(1)", None),
        ("assert f(1) == 1\nassert f(2) == 2", None),
        ("not python (", None),
        ("assert f(1) == " + "[" * 5000 + "]" * 5000, None),
    ],
)
def test_a_call_and_a_literal_are_recognised(test: str, call: Call | None) -> None:
    assert call_of(test) == call


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["assert f(g(1)) == len([2])"], ["f", "g"]),
        (["import math as m\nfrom a.b import c", "assert m.x(c, f(1))"], ["f"]),
        (["root = Node(1)", "assert f(root) == [x for x in range(3)]"], ["Node", "f"]),
        (["assert sum(sum(1, 2), 3) == int('6')"], ["sum"]),
        (["try:\n    f(1)\nexcept ValueError as e:\n    assert str(e)"], ["f"]),
        (["assert list(map(lambda n: f(n), [1]))"], ["f"]),
    ],
)
def test_names_that_only_the_program_can_define(texts: list[str], names: list[str]) -> None:
    assert program_names(texts) == names


def test_with_an_entry_point_builtins_are_the_tests_own() -> None:
    check = "def check(candidate):\n    assert abs(candidate(1)) == 2\ncheck(candidate)"
    assert program_names([check], "f") == []
    assert program_names(["assert abs(candidate(1)) == helper(2)"], "f") == ["helper"]


@pytest.mark.parametrize(
    "line", [b'{"error": [%s]}' % (b"[" * 990 + b"]" * 990), b"[" * 10**5, b"\xff", b'{"value": [[]]}']
)
def test_whatever_a_program_says_of_itself_it_is_wrong(line: bytes) -> None:
    class Says:
        parallel = 1

        def run(self, program: str, stdin: bytes, limits: Limits) -> Outcome:
            return Outcome("ok", line + b"\n" + line + b"\n", "", 0, 0.1)

    assert judge_calls(Says(), "", [Call("f", (1,), {}, 2)], Limits()).passed == [False]


def test_a_setup_of_imports() -> None:
    assert only_imports("import math\nfrom os import path") and only_imports("")
    assert not only_imports("x = 1") and not only_imports("not (")


@pytest.mark.parametrize(
    ("printed", "expected", "right"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        ("1\n2 3", "1 2\n3", True),
        ("", "", True),
        ("0.3333333", "0.333333", True),
        ("0.34", "0.33", False),
        ("1000000.5", "1000000.4", True),
        ("1", "1.0", True),
        ("1.0", "1", False),
        ("nan", "1.5", False),
        ("inf", "1e9.5", False),
        ("YES", "Yes", False),
        ("1 2", "1 2 3", False),
        ("x" * 10**5 + ".0", "1.0", False),
    ],
)
def test_output_is_compared_word_by_word(printed: str, expected: str, right: bool) -> None:
    assert same_output(printed, expected) is right


@pytest.mark.parametrize(
    ("expected", "value", "right"),
    [
        ("[1, 2]", (1, 2), True),
        ([[1, 2]], [1, 2], True),
        ("[[1]]", [(1,)], True),
        ('"a"', "a", True),
        ("[1]", [2], False),
    ],
)
def test_what_a_function_returns_is_compared_as_json(expected: object, value: object, right: bool) -> None:
    (call,) = calls_of("f", ["1\n[2]"], [expected])
    assert call.args == (1, [2])
    assert call.returns({"value": encode(value, nothing)}) is right
