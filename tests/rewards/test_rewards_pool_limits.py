"""Time, processor time and memory of one answer, and what an answer that hangs costs the others."""

import asyncio
import time

import pytest
from rewards_pools import score, texts

from verl_core.config.schema import RewardConfig
from verl_core.rewards.pool import ScoreRequest, ScorerPool
from verl_core.rewards.suspects import Suspects
from verl_core.rewards.workload import Workload


def test_memory_is_bounded_and_the_process_replaced(user_pool):  # case R4
    pool = user_pool(
        "if solution_str == 'hog': held = bytearray(10**9)\nreturn os.getpid()", timeout_s=5, limits={"memory_mb": 512}
    )
    verdicts = score(pool, texts("a", "hog", "b"))
    assert [v.error for v in verdicts] == [None, "memory: no more of it within reward.memory_mb", None]
    assert verdicts[0].reward != verdicts[2].reward


def test_processor_time_is_bounded_apart_from_waiting(user_pool):
    body = "while solution_str == 'loop': pass\ntime.sleep(0.4)\nreturn 1"
    verdicts = score(user_pool(body, timeout_s=20, limits={"cpu_s": 0.1}), texts("sleep", "loop", "sleep"))
    assert [v.reward for v in verdicts] == [1, 0, 1]
    assert verdicts[1].error == "cpu: more than 0.1 s of processor time"


def test_answers_behind_one_that_hangs_do_not_wait(user_pool):
    """One worker, a limit of 4 s: all others are told long before it, once the rule's usual time is known."""
    pool = user_pool("while solution_str == 'loop': pass\nreturn extra_info['index']", timeout_s=4.0)
    score(pool, texts(*"abc"))

    async def both():
        hanging = asyncio.create_task(pool.score(texts("loop")))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        others = await pool.score(texts(*"abcdefgh"))
        return others, time.monotonic() - began, hanging.done(), await hanging

    others, seconds, ended, hanging = asyncio.run(both())
    assert [v.reward for v in others] == list(range(8)) and seconds < 3.5 and not ended
    assert hanging[0].error == "timeout: no score within 4 s"


@pytest.mark.slow
def test_answers_that_are_merely_slow_run_into_no_limit(user_pool):
    """One in twenty takes 200 times as long as the others, a tenth of its limit: each looks as if it hung at first."""
    pool = user_pool(
        "end = time.process_time() + (0.1 if solution_str == 'slow' else 0.0005)\n"
        "while time.process_time() < end: pass\n"
        "return 1",
        timeout_s=1.0,
    )
    score(pool, texts(*["fast"] * 20))
    verdicts = score(pool, texts(*["slow" if i % 20 == 19 else "fast" for i in range(480)]))
    assert {v.error for v in verdicts} == {None}


def test_what_looks_hung_takes_little_from_others_unless_it_proves_innocent():
    suspects = Suspects(workers=2, timeout_s=10)
    suspects.credit = 0
    suspects.verdict(5, suspected=False)
    assert (suspects.credit, suspects.at_once) == (0.25, 2)
    for _ in range(9):
        suspects.hung()
    assert suspects.at_once == 32
    suspects.verdict(3, suspected=True)
    assert (suspects.credit, suspects.at_once) == (3.25, 16)
    suspects.verdict(1000, suspected=True)
    assert suspects.credit == 10
    many = Suspects(workers=64, timeout_s=10)
    many.hung()
    assert many.at_once == 64


def test_an_answer_looks_hung_only_beyond_what_others_took():
    work = Workload()
    assert work.slow_after("math") == float("inf")
    for seconds, processor_s in [(0.001, 0.001), (0.2, 0.1), *[(0.001, 0.001)] * 500]:
        work.measured("math", seconds, processor_s)
    assert 0.1 < work.slow_after("math") < 0.125
    for _ in range(30_000):
        work.measured("math", 0.001, 0.001)
    assert work.slow_after("math") == pytest.approx(0.008)


def test_loading_a_rule_costs_no_answer_its_time():
    """What a built-in rule loads late, for a data source that was not announced, does not count."""
    with ScorerPool(RewardConfig(timeout_s=0.2)) as pool:
        assert score(pool, [ScoreRequest("math", "\\boxed{1/2}", "0.5")])[0].reward == 1.0
