import asyncio
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from verl_core.config.errors import RunError, UserError
from verl_core.config.schema import CustomRewardConfig, RewardConfig
from verl_core.rewards.pool import ScoreRequest, ScorerPool
from verl_core.rewards.suspects import Suspects
from verl_core.rewards.workload import Workload


def answers(n, text="#### {i}"):
    return [ScoreRequest("openai/gsm8k", text.format(i=i), str(i)) for i in range(n)]


def texts(*solutions):
    return [ScoreRequest("mine", s, "7", {"index": i}) for i, s in enumerate(solutions)]


def score(pool, requests):
    return asyncio.run(pool.score(requests))


@pytest.fixture
def user_pool(tmp_path):
    """A pool that runs the body given, as a user's compute_score in a file."""
    pools = []

    def make(body, timeout_s=1.0, num_workers=1, limits=None, **kwargs):
        file = tmp_path / "reward.py"
        lines = "\n".join("    " + line for line in body.splitlines())
        signature = "data_source, solution_str, ground_truth, extra_info=None, **kwargs"
        file.write_text(f"import os, sys, time\ndef compute_score({signature}):\n{lines}\n", encoding="utf-8")
        cfg = RewardConfig(CustomRewardConfig(str(file)), kwargs, num_workers, timeout_s, **(limits or {}))
        pools.append(ScorerPool(cfg))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture(scope="module")
def gsm8k_pool():
    with ScorerPool(RewardConfig(num_workers=2)) as pool:
        yield pool


def test_order_is_kept_and_failures_stay_apart_from_wrong_answers(gsm8k_pool):
    requests = answers(300)
    requests[7] = ScoreRequest("openai/gsm8k", "#### 7", "")
    requests[8] = ScoreRequest("openai/gsm8k", "no", "8")
    verdicts = score(gsm8k_pool, requests)
    assert [v.pred for i, v in enumerate(verdicts) if i not in (7, 8)] == [
        str(i) for i in range(300) if i not in (7, 8)
    ]
    assert (verdicts[7].reward, verdicts[8].reward, verdicts[8].error) == (0, 0, None)
    assert sum(v.error is not None for v in verdicts) == 1 and "UnusableGold" in verdicts[7].error
    assert verdicts[0].acc == 1.0 and verdicts[0].parts == {"format": 1.0}
    assert score(gsm8k_pool, []) == []


def test_a_right_answer_is_right_from_any_thread_and_several_loops_at_once(gsm8k_pool):  # case R2
    results = {}

    def work(number):
        results[number] = score(gsm8k_pool, answers(20))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(v.reward == 1.0 for k in range(4) for v in results[k])


def test_a_time_limit_holds_from_any_thread(user_pool):  # case R2
    """No alarm signal, which only the main thread can have; a failure is no wrong answer."""
    pool = user_pool("while solution_str == 'loop': pass\nreturn solution_str == '7'", timeout_s=0.5)
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.extend(score(pool, texts("7", "loop", "8"))))
    thread.start()
    thread.join()
    assert [(v.reward, v.error) for v in verdicts] == [(1, None), (0, "timeout: no score within 0.5 s"), (0, None)]


def test_slow_rules_run_beside_each_other(user_pool):  # case R17
    """800 answers of 2 ms take 1.6 s one after the other."""
    pool = user_pool("time.sleep(0.002)\nreturn 1", timeout_s=5, num_workers=8)
    score(pool, texts(*"abcdefgh"))
    began = time.perf_counter()
    assert all(v.reward == 1.0 for v in score(pool, texts(*["a"] * 800)))
    assert time.perf_counter() - began < 1.2


def test_16384_answers_take_a_few_seconds(gsm8k_pool):  # case R17
    began = time.perf_counter()
    verdicts = score(gsm8k_pool, answers(16_384))
    assert time.perf_counter() - began < 20  # about 1 s on an idle machine
    assert all(v.reward == 1.0 for v in verdicts)


def test_answers_longer_than_a_socket_holds_are_scored(gsm8k_pool):
    verdicts = score(gsm8k_pool, answers(64, "x" * 100_000 + "\n#### {i}"))
    assert [v.reward for v in verdicts] == [1.0] * 64


def test_data_sources_are_checked_before_the_run(gsm8k_pool):
    gsm8k_pool.check(["openai/gsm8k"])
    with pytest.raises(UserError, match="my/data"):
        gsm8k_pool.check(["openai/gsm8k", "my/data"])
    with ScorerPool(RewardConfig(reward_kwargs={"methood": 1})) as pool, pytest.raises(UserError, match="methood"):
        pool.check(["openai/gsm8k"])


def test_a_busy_loop_costs_only_its_own_answer(user_pool):  # case R4
    pool = user_pool("while solution_str == 'loop': pass\nreturn extra_info['index']")
    verdicts = score(pool, texts("a", "loop", "b", "loop", "c"))
    assert [v.reward for v in verdicts] == [0, 0, 2, 0, 4]
    assert [v.error for v in verdicts] == [
        None,
        "timeout: no score within 1 s",
        None,
        "timeout: no score within 1 s",
        None,
    ]


def test_the_limit_holds_for_each_answer_not_for_the_batch(user_pool):
    pool = user_pool("time.sleep(0.2)\nreturn 1", timeout_s=1.2)
    assert [v.reward for v in score(pool, texts(*"abcdefgh"))] == [1.0] * 8


def test_a_dead_process_costs_only_its_own_answer(user_pool):
    pool = user_pool("if solution_str == 'die': os._exit(3)\nreturn 1", timeout_s=5)
    verdicts = score(pool, texts("a", "die", "b"))
    assert [v.reward for v in verdicts] == [1, 0, 1]
    assert verdicts[1].error == "crash: the scorer process ended with status 3"


def test_a_process_killed_while_idle_is_replaced(user_pool):
    pool = user_pool("return os.getpid()", timeout_s=5)
    pid = int(score(pool, texts("a"))[0].reward)
    os.kill(pid, signal.SIGKILL)
    verdicts = score(pool, texts("a", "b"))
    assert all(v.error is None or v.error.startswith("crash") for v in verdicts) and verdicts[1].reward != pid
    assert verdicts[1].error is None


def test_what_a_rule_raises_or_returns_wrongly_is_a_counted_zero(user_pool):
    pool = user_pool(
        "if solution_str == 'raise': raise KeyError('x')\n"
        "if solution_str == 'exit': sys.exit(1)\n"
        "if solution_str == 'recurse': return compute_score('', 'recurse', '', {})\n"
        "return {'nan': float('nan'), 'str': 'yes', 'ok': True}[solution_str]",
        timeout_s=5,
    )
    verdicts = score(pool, texts("raise", "exit", "recurse", "nan", "str", "ok"))
    assert [v.reward for v in verdicts] == [0, 0, 0, 0, 0, 1]
    assert verdicts[0].error == "KeyError: 'x' (reward.py:3)"
    said = [v.error.split(":")[0] for v in verdicts[1:5]]
    assert said == ["SystemExit", "RecursionError", "WrongReturn", "WrongReturn"]


def test_what_a_rule_starts_does_not_outlive_its_limit(user_pool, tmp_path):  # case R4
    body = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "child.wait()"
    )
    score(user_pool(body), texts("a"))
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_process_has_no_torch_and_its_prints_stay_off_stdout(user_pool, capfd):
    pool = user_pool(
        "print('talk')\nreturn {'score': 'torch' in sys.modules, 'ray': 'ray' in sys.modules}", timeout_s=5
    )
    verdict = score(pool, texts("a"))[0]
    assert verdict.error is None and verdict.reward == 0.0 and verdict.parts == {"ray": 0.0}
    assert capfd.readouterr().out == ""


def test_arguments_reach_the_rule_and_coroutines_are_awaited(tmp_path):
    file = tmp_path / "reward.py"
    file.write_text(
        "async def mine(data_source, solution_str, ground_truth, extra_info=None, scale=1):\n"
        "    return scale * (solution_str == ground_truth) + extra_info['index']"
    )
    with ScorerPool(RewardConfig(CustomRewardConfig(str(file), "mine"), {"scale": 10})) as pool:
        assert [v.reward for v in score(pool, texts("7", "8"))] == [10.0, 1.0]


class Rule:
    def __init__(self, bonus):
        self.bonus = bonus

    def __call__(self, data_source, solution_str, ground_truth, extra_info=None):
        return self.bonus


def test_closures_partials_and_objects_are_rules(tmp_path):  # case R15
    bonus = 0.5

    def closure(data_source, solution_str, ground_truth, extra_info=None):
        return bonus

    def with_kwargs(bonus, **kwargs):
        return bonus

    for rule in (closure, functools.partial(with_kwargs, 0.5), Rule(0.5)):
        with ScorerPool(RewardConfig(), scorer=rule) as pool:
            assert [v.reward for v in score(pool, texts("a"))] == [0.5]
    with pytest.raises(UserError, match="cannot be sent to another process"):
        ScorerPool(RewardConfig(), scorer=functools.partial(with_kwargs, threading.Lock()))


def test_a_rule_that_cannot_be_loaded_is_refused_at_the_start(tmp_path):
    file = tmp_path / "reward.py"
    for text, said in [
        ("1/0", "ZeroDivisionError"),
        ("import os; os._exit(4)", "status 4"),
        ("def compute_score(a): 1", "takes"),
    ]:
        file.write_text(text)
        with pytest.raises(UserError, match=said):
            ScorerPool(RewardConfig(CustomRewardConfig(str(file))))


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
    """One worker, a limit of 2 s: all others are told long before it, once the rule's usual time is known."""
    pool = user_pool("while solution_str == 'loop': pass\nreturn extra_info['index']", timeout_s=2.0)
    score(pool, texts(*"abc"))

    async def both():
        hanging = asyncio.create_task(pool.score(texts("loop")))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        others = await pool.score(texts(*"abcdefgh"))
        return others, time.monotonic() - began, hanging.done(), await hanging

    others, seconds, ended, hanging = asyncio.run(both())
    assert [v.reward for v in others] == list(range(8)) and seconds < 1.5 and not ended
    assert hanging[0].error == "timeout: no score within 2 s"


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
