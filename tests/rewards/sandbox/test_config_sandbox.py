"""The sandbox's keys: what they ask of each other, when they are idle, and what veRL calls them."""

import pytest

from verl_core.config.compose import resolve
from verl_core.config.errors import UserError
from verl_core.config.scorers import scorer_of

KEY = "reward.sandbox"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([f"{KEY}.type=remote"], "set reward.sandbox.url"),
        ([f"{KEY}.url=localhost:8080"], "begins with http"),
        ([f"{KEY}.url=http://"], "begins with http"),
        ([f"{KEY}.timeout_s=10"], "not below reward.timeout_s"),
        ([f"{KEY}.memory_mb=8"], r"\[64, 1048576\]"),
        ([f"{KEY}.run_timeout_s=0"], r"\(0, inf\)"),
        ([f"{KEY}.type=docker"], "bubblewrap"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve("smoke", words)


@pytest.mark.parametrize(
    ("words", "switch"),
    [
        ([f"{KEY}.retries=5"], f"{KEY}.url"),
        ([f"{KEY}.url=http://box:8080", f"{KEY}.type=bubblewrap"], f"{KEY}.type=remote"),
        ([f"{KEY}.tmp_mb=4", f"{KEY}.url=http://box:8080"], f"{KEY}.type=bubblewrap"),
        ([f"{KEY}.memory_mb=256", "reward.custom_reward_function.path={file}"], "reward.scorers={task: 1, code: 1}"),
    ],
)
def test_what_has_no_effect_is_told(words: list[str], switch: str, tmp_path) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None): return 0.0\n")
    words = [word.replace("{file}", str(file)) for word in words]
    (line,) = [line for line in resolve("smoke", words).warnings if KEY in line]
    assert switch in line


def test_with_the_rule_beside_a_function_of_the_user_it_has(tmp_path) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None): return 0.0\n")
    words = [f"reward.custom_reward_function.path={file}", "reward.scorers={task: 1, code: 1}", f"{KEY}.memory_mb=256"]
    assert not [line for line in resolve("smoke", words).warnings if KEY in line]


@pytest.mark.parametrize("section", ["reward.sandbox_fusion", "sandbox_fusion"])
def test_verls_keys_are_the_sandboxs(section: str) -> None:
    words = [f"{section}.url=http://box:8080", f"{section}.max_concurrent=8", f"{section}.memory_limit_mb=256"]
    sandbox = resolve("smoke", words).config.reward.sandbox
    assert (sandbox.url, sandbox.max_concurrent, sandbox.memory_mb) == ("http://box:8080", 8, 256)


def test_verls_data_sources_are_scored_by_programs() -> None:
    for name in ("codecontests", "apps", "codeforces", "taco", "mbpp", "openai/openai_humaneval", "livecodebench/v5"):
        assert scorer_of(name).where == "verl_core.rewards.code:compute_score"
