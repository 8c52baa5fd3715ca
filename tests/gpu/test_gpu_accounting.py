"""On a GPU: traces hold the kernels of recorded parts alone, memory is the allocator's, running out says so."""

import gzip
import json
import re
from pathlib import Path

import pytest
import torch

from verl_core.controller.out_of_memory import OutOfMemory
from verl_core.controller.phases import Phases
from verl_core.platforms import current
from verl_core.platforms.profiling import DETAILED, Profile, part, span

pytestmark = pytest.mark.gpu


def test_kernels_stand_in_the_parts_that_are_recorded(tmp_path: Path):
    platform = current("cuda")
    x = torch.ones(1024, 1024, device=platform.device)
    file = tmp_path / "trace.json.gz"
    profile = Profile(platform, memory=True)
    profile.start()
    for _ in range(DETAILED + 20):
        with span("update_actor"), part("micro_batch"):
            x @ x
            torch.cuda.synchronize()
    with span("push"):
        x @ x
    profile.stop(file)
    with gzip.open(file, "rt") as stream:
        events = json.load(stream)["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert DETAILED + 1 <= len(kernels) < 3 * (DETAILED + 1)
    assert sum(event["name"] == "aten::mm" for event in events) == DETAILED + 1
    assert {"GPU 0 allocated, GiB"} <= {event["name"] for event in events if event["ph"] == "C"}


def test_memory_of_a_phase_is_the_allocators():
    phases = Phases(current("cuda"), 0)
    with phases.phase("update_actor"):
        kept = torch.empty(2**28, device="cuda")  # 1 GiB
        torch.empty(2**28, device="cuda")
    report = phases.report()
    before = report["memory/update_actor/resident_gb"] - 1
    assert report["memory/update_actor/peak_gb"] == pytest.approx(before + 2, abs=0.01)
    del kept
    with phases.phase("push"):
        pass
    assert phases.report()["memory/push/resident_gb"] == pytest.approx(before, abs=0.01)


def test_running_out_names_what_was_asked_for_and_held():
    platform = current("cuda")
    with pytest.raises(OutOfMemory) as caught, Phases(platform, 2).phase("update_actor"):
        torch.empty(2 * platform.memory_bytes(), dtype=torch.uint8, device="cuda")
    size = r"[\d.]+ [GM]iB"
    want = rf"out of memory in update_actor on rank 2: {size} asked for, {size} allocated, {size} reserved, of {size}"
    assert re.fullmatch(want, caught.value.message)
