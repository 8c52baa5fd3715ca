"""Traces are valid Chrome traces with our phases as ranges, and stay small whatever a phase repeats."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from verl_core.platforms import current
from verl_core.platforms.profiling import DETAILED, Profile, part, span


def traced(file: Path, parts: int, memory: bool = False) -> list[dict]:
    x = torch.ones(8, 8)
    profile = Profile(current("cpu"), memory)
    profile.start()
    for phase in ("update_actor", "update_critic"):
        for _ in range(parts):
            with span(phase), part("micro_batch"):
                x @ x
    with span("push"):
        x @ x
    profile.stop(file)
    with gzip.open(file, "rt") as stream:
        return json.load(stream)["traceEvents"]


def ranges(events: list[dict]) -> list[str]:
    return [event["name"] for event in events if event.get("cat") == "user_annotation"]


def products(events: list[dict]) -> int:
    return sum(event["name"] == "aten::mm" for event in events)


def test_phases_and_parts_are_complete_events(tmp_path: Path):
    events = traced(tmp_path / "made" / "step_1_rank_0.json.gz", parts=2)
    assert ranges(events).count("update_actor") == ranges(events).count("update_critic") == 2
    assert {"push", "micro_batch 0", "micro_batch 1"} <= set(ranges(events))
    assert products(events) == 5
    whole = [event for event in events if event["ph"] == "X"]
    assert whole and all(event["dur"] >= 0 and "ts" in event and "pid" in event and "tid" in event for event in whole)
    outer = next(event for event in whole if event["name"] == "update_actor")
    inner = next(event for event in whole if event["name"] == "micro_batch 0")
    assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1


def test_only_the_first_parts_of_each_phase_are_recorded(tmp_path: Path):
    events = traced(tmp_path / "trace.json.gz", parts=DETAILED + 30)
    assert ranges(events).count("update_actor") == DETAILED + 30  # what a phase takes as a whole is always there
    assert products(events) == 2 * DETAILED + 1
    x = torch.ones(4, 4)
    with torch.profiler.profile() as after:  # recording is on again
        x @ x
    assert any(event.key == "aten::mm" for event in after.key_averages())


def test_memory_is_a_counter_that_perfetto_draws(tmp_path: Path):
    events = traced(tmp_path / "trace.json.gz", parts=1, memory=True)
    counters = [event for event in events if event["ph"] == "C"]
    assert counters and all(event["args"]["GiB"] >= 0 for event in counters)
    assert {event["name"] for event in counters} == {"CPU allocated, GiB"}
    assert not [event for event in traced(tmp_path / "plain.json.gz", parts=1) if event["ph"] == "C"]


def test_one_trace_is_taken_at_a_time(tmp_path: Path):
    profile = Profile(current("cpu"))
    profile.start()
    with pytest.raises(RuntimeError, match="already"):
        Profile(current("cpu")).start()
    profile.stop(tmp_path / "first.json.gz")
    assert (tmp_path / "first.json.gz").exists()
    with span("push"), part("micro_batch"):  # nothing listens any more
        assert float(torch.ones(2).sum()) == 2
