"""Processes of the scorer pool: how they are loaded, replaced, and end."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rewards_pools import alive, answers, score, texts

from verl_core.config.errors import RunError
from verl_core.config.schema import CustomRewardConfig, RewardConfig
from verl_core.rewards.pool import ScoreRequest, ScorerPool


def test_a_file_that_starts_threads_is_loaded_for_each_process(tmp_path):
    """A fork would not have its threads. Its processes end, and are replaced, as others are."""
    file = tmp_path / "reward.py"
    file.write_text(
        "import os, queue, threading, time\n"
        "asked, told = queue.Queue(), queue.Queue()\n"
        "threading.Thread(target=lambda: [told.put(os.getpid()) for _ in iter(asked.get, None)], daemon=True).start()\n"
        "def compute_score(solution_str, **_):\n"
        "    time.sleep(0.05)\n"
        "    if solution_str == 'die': os._exit(3)\n"
        "    while solution_str == 'loop': pass\n"
        "    asked.put(1)\n"
        "    return {'score': told.get(), 'own': os.getpid()}\n"
    )
    with ScorerPool(RewardConfig(CustomRewardConfig(str(file)), num_workers=2, timeout_s=1.5)) as pool:
        verdicts, deadline = score(pool, texts(*"abcd")), time.monotonic() + 30
        while len({v.reward for v in verdicts}) < 2 and time.monotonic() < deadline:  # until the second is loaded, too
            verdicts += score(pool, texts(*"abcd"))
        assert len({v.reward for v in verdicts}) == 2 and all(v.parts["own"] == v.reward for v in verdicts)
        others = score(pool, texts("a", "die", "b", "loop", "c"))
    assert [v.error for v in others] == [
        None,
        "crash: the scorer process ended with status 3",
        None,
        "timeout: no score within 1.5 s",
        None,
    ]


def test_a_template_that_is_killed_is_replaced(user_pool):
    pool = user_pool("return os.getppid()", timeout_s=5)
    template = int(score(pool, texts("a"))[0].reward)
    os.kill(template, signal.SIGKILL)
    time.sleep(0.2)
    verdicts = score(pool, texts("a", "b"))
    assert verdicts[1].error is None and verdicts[1].reward != template


def test_a_caller_that_gives_up_leaves_the_pool_as_it_was(user_pool):
    pool = user_pool("while solution_str == 'loop': pass\nreturn 1", timeout_s=0.5)

    async def give_up():
        task = asyncio.create_task(pool.score(texts("loop", "a", "b")))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await pool.score(texts("c"))

    assert asyncio.run(give_up())[0].reward == 1.0
    assert not pool._dispatcher._open


def test_a_source_waits_while_too_much_is_queued(user_pool):
    pool = user_pool("time.sleep(0.2)\nreturn 1", timeout_s=5, limits={"max_queue": 2})

    async def wait():
        await pool.room()
        scoring = asyncio.create_task(pool.score(texts(*"abcde")))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await pool.room()
        waited, done = time.monotonic() - began, scoring.done()
        await scoring
        return waited, done

    waited, done = asyncio.run(wait())
    assert waited > 0.2 and not done


def test_scoring_leaves_the_event_loop_free(gsm8k_pool):  # case R17
    """The loop that generates runs on: perf.md's V2."""

    async def lags():
        scoring = asyncio.create_task(gsm8k_pool.score(answers(2048)))
        found = []
        while not scoring.done():
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            found.append(time.perf_counter() - began)
        return found

    found = sorted(asyncio.run(lags()))
    assert found[len(found) // 2] < 0.1


def test_two_pools_do_not_hold_one_another(user_pool):
    first, second = (ScorerPool(RewardConfig()) for _ in range(2))
    with second:
        assert score(second, answers(3))[2].reward == 1.0
        first.close()
        assert score(second, answers(3))[2].reward == 1.0


def test_a_full_disk_behind_stderr_costs_no_reward(tmp_path):
    path = tmp_path / "loud.py"
    path.write_text("def compute_score(**_):\n    print('x' * 10**5, flush=True)\n    return 1.0\n")
    code = (
        "import asyncio\n"
        "from verl_core.config.schema import CustomRewardConfig, RewardConfig\n"
        "from verl_core.rewards.pool import ScoreRequest, ScorerPool\n"
        f"with ScorerPool(RewardConfig(CustomRewardConfig({str(path)!r}))) as pool:\n"
        "    print(asyncio.run(pool.score([ScoreRequest('mine', '', '')]))[0].reward)\n"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, text=True)
    assert done.stdout == "1.0\n"


def test_close_is_bounded_while_a_rule_hangs(user_pool):
    pool = user_pool("while True: pass", timeout_s=60)
    failure = []

    def work():
        try:
            score(pool, texts("a"))
        except RunError as e:
            failure.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.3)
    began = time.perf_counter()
    pool.close()
    thread.join(5)
    assert time.perf_counter() - began < 5 and not thread.is_alive()
    assert len(failure) == 1
    pool.close()


@pytest.mark.parametrize("last", ["while True: pass", "re.match('(a+)+$', 'a' * 60 + 'b')", "return 1.0"])
def test_no_process_is_left_when_the_owner_is_killed(tmp_path, last):
    """Also none that the rule has started, and not while it is in C code that lets no other thread run."""
    pids = tmp_path / "pids"
    (tmp_path / "reward.py").write_text(
        "import os, re, subprocess\n"
        "def compute_score(**kwargs):\n"
        "    child, other = (subprocess.Popen(['sleep', '600'], process_group=group) for group in (None, 0))\n"
        f"    open({str(pids)!r} + '.part', 'w').write(f'{{os.getpid()}} {{child.pid}} {{other.pid}}')\n"
        f"    os.replace({str(pids)!r} + '.part', {str(pids)!r})\n"
        f"    {last}"
    )
    code = (
        "import asyncio, time\n"
        "from verl_core.config.schema import CustomRewardConfig, RewardConfig\n"
        "from verl_core.rewards.pool import ScoreRequest, ScorerPool\n"
        f"pool = ScorerPool(RewardConfig(CustomRewardConfig({str(tmp_path / 'reward.py')!r}), timeout_s=60))\n"
        "asyncio.run(pool.score([ScoreRequest('mine', '', '')]))\n"
        "time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 30
    while not pids.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.1)
    owner.kill()
    owner.wait()
    left = [int(pid) for pid in pids.read_text().split()]
    deadline = time.monotonic() + 10
    while any(map(alive, left)) and time.monotonic() < deadline:
        time.sleep(0.1)
    survivors = [pid for pid in left if alive(pid)]
    for pid in survivors:
        os.kill(pid, signal.SIGKILL)
    assert survivors == []


def test_what_a_rule_prints_is_bounded_an_answer(tmp_path, capfd):
    """Case R4: a rule that prints without end does not bury the run's log."""
    path = tmp_path / "loud.py"
    path.write_text("def compute_score(**_):\n    print('x' * 10**7)\n    return 1.0\n")
    cfg = RewardConfig(custom_reward_function=CustomRewardConfig(path=str(path)))
    with ScorerPool(cfg) as pool:
        verdicts = asyncio.run(pool.score([ScoreRequest("any", "a", "b")] * 3))
    assert [v.reward for v in verdicts] == [1.0] * 3
    printed = capfd.readouterr().err
    assert 3 * 4096 <= len(printed) < 3 * 4096 + 500
    assert printed.count("is left out") == 3
