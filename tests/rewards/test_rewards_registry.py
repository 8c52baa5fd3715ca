import pytest

from verl_core.config import registry
from verl_core.config.errors import UserError
from verl_core.config.scorers import scorer_of
from verl_core.rewards import gsm8k
from verl_core.rewards.registry import check_signature, default_scorer, load_user_function


def test_data_sources_have_their_rule_and_unknown_ones_are_refused_with_a_way_out():
    assert default_scorer("openai/gsm8k") is gsm8k.compute_score
    with pytest.raises(UserError, match=r"'openai/gsm8'; did you mean openai/gsm8k") as error:
        default_scorer("openai/gsm8")
    assert "custom_reward_function" in error.value.hint


def test_a_rule_has_a_short_name_and_patterns_stand_behind_exact_names(monkeypatch):
    assert default_scorer("gsm8k") is gsm8k.compute_score
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    for name in ("test_rule*", "test_rule/long/*", "test_rule/long/exact"):
        registry.register("scorer", name, where=f"somewhere:{name}")
    found = {source: scorer_of(source).name for source in ("test_rule_2", "test_rule/long/x", "test_rule/long/exact")}
    assert list(found.values()) == ["test_rule*", "test_rule/long/*", "test_rule/long/exact"]
    with pytest.raises(UserError, match="no built-in reward"):
        scorer_of("my_test_rule")


def write(folder, text):
    (folder / "my_reward.py").write_text(text, encoding="utf-8")
    return str(folder / "my_reward.py")


def test_a_user_file_is_loaded_with_its_neighbours(tmp_path):
    (tmp_path / "rlx_test_neighbour.py").write_text("BONUS = 0.25")
    path = write(tmp_path, "from rlx_test_neighbour import BONUS\ndef f(**kw): return BONUS")
    assert load_user_function(path, "f")() == 0.25


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("x = 1", "compute_score", "my_reward.py has no 'compute_score'"),
        ("compute_score = 1", "compute_score", "no callable 'compute_score'"),
        ("1/0", "compute_score", r"fails at import: ZeroDivisionError: division by zero \(my_reward.py:1\)"),
        ("def f(:", "f", "fails at import: SyntaxError"),
        ("raise SystemExit(3)", "f", "fails at import: SystemExit"),
    ],
)
def test_what_is_wrong_with_a_user_file_is_said(tmp_path, text, name, said):
    with pytest.raises(UserError, match=said):
        load_user_function(write(tmp_path, text), name)


def test_an_absent_file_is_said(tmp_path):
    with pytest.raises(UserError, match="no such reward file"):
        load_user_function(str(tmp_path / "none.py"), "f")


def test_arguments_that_do_not_fit_are_refused_before_any_answer():
    check_signature(gsm8k.compute_score, {"method": "flexible"}, "gsm8k")
    with pytest.raises(UserError, match=r"gsm8k takes .*methood"):
        check_signature(gsm8k.compute_score, {"methood": "flexible"}, "gsm8k")
    with pytest.raises(UserError, match="extra_info"):
        check_signature(lambda data_source, solution_str, ground_truth: 0, {}, "mine")
