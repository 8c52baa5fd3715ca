"""The registry of metric names: complete, unambiguous, and the source of docs/metrics.md."""

from pathlib import Path

import pytest

from verl_core.tracking.registry import SECTIONS, UNREPEATABLE, check_known, find, markdown
from verl_core.tracking.timing import Timer

ROOT = Path(__file__).parents[2]


def test_the_page_is_current():
    assert (ROOT / "docs" / "metrics.md").read_text() == markdown(), (
        "run: python -m verl_core.tracking.registry > docs/metrics.md"
    )


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("critic/score/max", "critic/score/{mean,max,min}"),
        ("val/test_score/openai/gsm8k", "val/test_score/<data_source>"),
        ("val-core/openai/gsm8k/reward/maj@8", "val-core/<data_source>/reward/maj@<n>"),
        ("reward/failed", "reward/failed"),
        ("reward/format/mean", "reward/<part>/mean"),
        ("timing_s/update_actor", "timing_s/update_{actor,critic,reward_model}"),
        ("perf/max_memory_allocated_gb", "perf/max_memory_{allocated,reserved}_gb"),
    ],
)
def test_names_are_found(name, entry):
    found = find(name)
    assert found is not None and found.name == entry


@pytest.mark.parametrize(
    "name", ["critic/score/median", "reward", "actor/pg_loss2", "xactor/pg_loss", "val/test_score/"]
)
def test_others_are_not(name):
    assert find(name) is None
    with pytest.raises(ValueError, match=f"not in verl_core/tracking/registry.py: {name}$"):
        check_known(["step", "actor/lr", name])


def test_only_times_and_hardware_may_differ_between_runs():
    entries = [m for metrics in SECTIONS.values() for m in metrics]
    assert {m.name for m in entries if not m.repeatable} == {m.name for m in SECTIONS["Time and hardware"]}
    assert len({m.name for m in entries}) == len(entries)
    assert all(m.name.startswith(UNREPEATABLE) for m in SECTIONS["Time and hardware"])


def test_everything_the_timer_says_is_registered():
    timer = Timer()
    phases = (
        "gen",
        "reward",
        "old_log_prob",
        "ref",
        "values",
        "adv",
        "update_actor",
        "update_critic",
        "update_weights",
    )
    for phase in (*phases, "testing", "save_checkpoint"):
        timer.add(phase, 0.1)
    check_known(timer.end_step(tokens=10, response_tokens=5))
