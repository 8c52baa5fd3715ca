"""Every built-in rule against answers that are made to trick it: nothing is rewarded, nothing runs, nothing hangs."""

import asyncio
import math
from dataclasses import replace

import pytest

from tests.rewards.hostile_answers import Task, boxed, hedges, line, long_texts, marked, short_texts, tagged
from verl_core.config import catalogue
from verl_core.config.schema import RewardConfig
from verl_core.rewards.pool import ScoreRequest, ScorerPool
from verl_core.rewards.registry import default_scorer
from verl_core.rewards.verdict import UnusableGold

NUMBERS = tuple(str(i) for i in range(1, 101) if i != 42)
CITIES = ("Rome", "London", "Madrid", "Berlin")
WRONG = (("knave", "knight"), ("knave", "knave"), ("knight", "knight"))
PEOPLE = tuple(f"Ada is a {ada}, and Ben is a {ben}" for ada, ben in WRONG)
KNIGHTS = {"names": ["Ada", "Ben"], "knights": [True, False]}
COUNTDOWN = {"target": 24, "numbers": [4, 6]}

TASKS = {
    "gsm8k": Task("42", "42", NUMBERS, marked),
    "gsm8k boxed": Task("42", "42", NUMBERS, boxed, {"method": "boxed"}),
    "gsm8k flexible": Task("42", "42", NUMBERS, marked, {"method": "flexible"}),
    "show_your_work": Task("42", "42", NUMBERS, marked),
    "math": Task("42", "42", NUMBERS, boxed),
    "math answer_line": Task("42", "42", NUMBERS, line, {"extract": "answer_line"}),
    "math flexible": Task("42", "42", NUMBERS, boxed, {"extract": "flexible"}),
    "dapo_math": Task("42", "42", NUMBERS, line),
    "geometry": Task("42", "42", NUMBERS, boxed, {"accuracy_weight": 1.0, "format_weight": 0.0}),
    "countdown": Task(COUNTDOWN, "4*6", ("4+6", "6-4", "4/6", "6/4", "24", "4*4"), tagged),
    "knights_and_knaves": Task(KNIGHTS, "Ada is a knight, and Ben is a knave", PEOPLE, tagged),
    "multiple_choice": Task("B", "B", ("A", "C", "D"), line),
    "multiple_choice words": Task("B", "London", ("Rome", "Madrid"), tagged, extra_info={"choices": CITIES}),
    "qa": Task("Paris", "Paris", CITIES, tagged),
    "qa_f1": Task("Paris", "Paris", CITIES, tagged),
}
ODD_GOLDS = (
    *(None, "", "  ", "None", "\ud800", "\x00", "(", "{", "\\frac{", "9" * 5000, '{"target": 1', b"x"),
    *(0, -1, True, 1.5, float("nan"), float("inf"), [], ["x"], [None], [[["x"]]]),
    *({}, {"target": None}, {"target": {}}, {"names": [], "knights": []}, {"target": 1, "numbers": []}, {"tests": 1}),
)
SHAPES = {"format": {}, "format shaped": {"shaped": True}, "repetition": {}, "script": {}}
PARTIAL = {"qa_f1", "knights_and_knaves"}  # a share of the reward for a share of the answer
ELSEWHERE = {"code": "hostile programs", "reasoning_gym": "verifiers of another library"}


def rule_of(name):
    return default_scorer(name.split()[0])


def score(name, task, text):
    keywords = {"extra_info": task.extra_info, **task.keywords}
    return rule_of(name)(data_source=name, solution_str=text, ground_truth=task.gold, **keywords)


def test_every_rule_is_here():
    places = {catalogue.entry("scorer", name).where for name in catalogue.names("scorer")}
    here = {catalogue.entry("scorer", name.split()[0]).where for name in (*TASKS, *SHAPES, *ELSEWHERE)}
    assert places == here


def test_there_are_more_than_a_hundred_texts():
    for task in TASKS.values():
        assert len(short_texts(task)) + len(hedges(task)) + len(long_texts(100)) > 300


@pytest.mark.parametrize("name", TASKS)
def test_no_hostile_answer_is_rewarded_and_the_next_verdict_is_unchanged(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = TASKS[name]
    right = score(name, task, task.wrap(task.says))
    assert right["score"] == right["acc"] == 1
    rewarded = []
    for kind, text in {**short_texts(task), **hedges(task), **long_texts(2000)}.items():
        text = text.replace("{made}", str(tmp_path / "made"))
        found = score(name, task, text)
        assert math.isfinite(found["score"])
        if found["acc"] or (found["score"] > 0 and name not in PARTIAL):
            rewarded.append((kind, text[:80], found))
        if score(name, task, task.wrap(task.says)) != right:
            rewarded.append((kind, "the next verdict is another"))
    assert not rewarded
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", TASKS)
def test_a_gold_of_any_kind_is_used_or_refused_and_no_empty_answer_equals_it(name):
    task = TASKS[name]
    for gold in ODD_GOLDS:
        for text in ("", task.wrap(""), task.wrap("None"), task.wrap(task.says)):
            try:
                found = score(name, replace(task, gold=gold), text)
            except UnusableGold:
                continue
            assert not found["acc"] or text == task.wrap(task.says), (gold, text)


@pytest.mark.parametrize("name", SHAPES)
def test_rules_of_form_take_any_text(name):
    for text in {**short_texts(TASKS["qa"]), **long_texts(2000)}.values():
        found = rule_of(name)(data_source="any", solution_str=text, ground_truth=None, **SHAPES[name])
        assert -1 <= found["score"] <= 1 and found["acc"] is None
        assert not text.strip() or name != "format" or found["score"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("size", [20_000, 1_000_000])
def test_through_the_pool_each_text_costs_bounded_time_and_no_other_verdict(size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = long_texts(size)
    few = ["many '{'", "boxes in boxes", "a million digits, marked", "many '\\x00'"]
    rules = {name: task for name, task in TASKS.items() if not task.keywords and not task.extra_info}
    rules |= {name: TASKS["qa"] for name, keywords in SHAPES.items() if not keywords}
    asked = [(name, task, kind) for name, task in rules.items() for kind in (few if size > 100_000 else texts)]
    hostile = [ScoreRequest(name, texts[kind], task.gold) for name, task, kind in asked]
    honest = [ScoreRequest(name, task.wrap(task.says), task.gold) for name, task, _ in asked]
    with ScorerPool(RewardConfig(num_workers=2, timeout_s=30.0, cpu_s=2.0)) as pool:
        mixed = [request for pair in zip(hostile, honest, strict=True) for request in pair]
        verdicts = asyncio.run(pool.score(mixed))
    assert [(r.data_source, v.error) for r, v in zip(mixed, verdicts, strict=True) if v.error] == []
    for (name, _, kind), bad, good in zip(asked, verdicts[::2], verdicts[1::2], strict=True):
        if name in TASKS:
            assert (bad.acc, good.acc) == (0, 1), (name, kind)
    assert not list(tmp_path.iterdir())
