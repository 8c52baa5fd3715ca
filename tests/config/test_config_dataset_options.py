"""Options that one data set alone takes: from words to its dataclass."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from verl_core.config import catalogue, dataset_options
from verl_core.config.datasets import DatasetFacts
from verl_core.config.errors import UserError


@dataclass(frozen=True)
class Options:
    count: int = 10
    share: float = 0.5
    strict: bool = False
    kind: Literal["one", "other"] = "one"
    text: str | None = None
    map: dict[str, str] = field(default_factory=dict)
    set: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(autouse=True)
def data_set(monkeypatch):
    entry = catalogue.Entry("dataset", "mine", options=DatasetFacts({"train": 1}, "MIT", options=Options))
    family = catalogue.Entry("dataset", "family", options=DatasetFacts({}, "MIT", tasks=("chess", "checkers")))
    known = {"mine": entry, "family": family}
    monkeypatch.setattr(catalogue, "entry", lambda kind, name: known[name])
    monkeypatch.setattr(catalogue, "names", lambda kind: list(known))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Options()),
        (["--count", "3", "--share=1", "--strict"], Options(count=3, share=1.0, strict=True)),
        (["--no-strict", "--kind", "other"], Options(kind="other")),
        (["--text", "12"], Options(text="12")),
        (["--text="], Options(text="")),
        (["--count", "-1"], Options(count=-1)),
        (["--map", "a=b,c=d", "--map", "e=f.g"], Options(map={"a": "b", "c": "d", "e": "f.g"})),
        (["--map", "prompt=Hi, you: 1=1"], Options(map={"prompt": "Hi, you: 1=1"})),
        (["--set", 'ops=["+", "-"],n=3'], Options(set={"ops": ["+", "-"], "n": 3})),
    ],
)
def test_words_become_the_dataclass(words, expected):
    assert dataset_options.read("mine", words) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--counts", "3"], "mine has no option --counts; did you mean --count?"),
        (["--sourcee", "x"], "did you mean --source?"),
        (["--count"], "--count needs a value"),
        (["--count", "many"], "--count 'many': expected a whole number"),
        (["--kind", "third"], "--kind 'third': expected one of one, other"),
        (["--strict=perhaps"], "--strict 'perhaps': expected true or false"),
        (["--no-count"], "mine has no option --no-count"),
        (["--map", "a"], "--map 'a' is not KEY=VALUE"),
        (["--set", "a=[1"], "--set '[1' is no value"),
        (["other"], "unexpected word 'other'"),
    ],
)
def test_what_does_not_fit_is_named(words, said):
    with pytest.raises(UserError) as error:
        dataset_options.read("mine", words)
    assert said in error.value.message


@pytest.mark.parametrize("name", ["mine:task", "mine:", "family", "family:", "family:ches"])
def test_only_families_have_tasks(name):
    with pytest.raises(UserError):
        dataset_options.find(name)


def test_the_folder_of_a_task_lies_in_its_familys():
    assert dataset_options.find("family:chess")[1] == "chess"
    assert dataset_options.folder("family:chess", None) == "family/chess"
    assert dataset_options.folder("mine", Options()) == "mine"


def test_every_option_is_described_with_its_default():
    told = dataset_options.described(Options)
    assert (
        told["--count"] == "a whole number (10)" and told["--map"] == "a mapping" and told["--text"] == "text or null"
    )


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("~/data/mine/train.parquet", "mine"),
        ("~/data/family/chess/test.parquet", "family:chess"),
        ("~/data/family/other/test.parquet", "family"),
        ("/elsewhere/train.parquet", None),
    ],
)
def test_who_makes_a_file(file, expected):
    assert dataset_options.maker(file) == expected
