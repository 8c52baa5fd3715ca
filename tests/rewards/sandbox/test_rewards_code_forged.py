"""A program gets its reward for right values and for nothing else, whatever it does to look as if it had passed."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from forged_programs import FORGED, GOLDS, HONEST

from verl_core.config.schema_sandbox import SandboxConfig
from verl_core.rewards.code import compute_score

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap (bwrap) is not installed")

CONFIG = SandboxConfig(type="bubblewrap", run_timeout_s=2.0, timeout_s=6.0)
QUICK = ("leaves for good", "imitates answers", "equal to everything", "ends loops in silence", "looks into memory")


def score(program: str, gold: dict) -> dict:
    return compute_score("code", f"```python\n{program}\n```", json.dumps(gold), sandbox=CONFIG)


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.mark.parametrize("form", GOLDS)
def test_the_work_itself_is_paid(form: str) -> None:
    verdict = score(HONEST, GOLDS[form])
    assert (verdict["score"], verdict["passed"], verdict["reason"]) == (1.0, 1.0, "right")


@pytest.mark.parametrize("name", QUICK)
def test_a_forgery_gets_nothing(name: str, threads: ThreadPoolExecutor) -> None:
    forms = ("calls", "loop")
    for form, verdict in zip(forms, threads.map(lambda form: score(FORGED[name], GOLDS[form]), forms), strict=True):
        assert (verdict["score"], verdict["passed"]) == (0.0, 0.0), form


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGED)
def test_no_forgery_gets_anything(name: str, threads: ThreadPoolExecutor) -> None:
    for form, verdict in zip(GOLDS, threads.map(lambda form: score(FORGED[name], GOLDS[form]), GOLDS), strict=True):
        assert (verdict["score"], verdict["acc"], verdict["passed"]) == (0.0, 0.0, 0.0), form
        assert verdict["reason"] not in ("right", "no program found")
