"""The scorer pool: order, threads, verdicts, what rules are."""

import functools
import os
import signal
import threading
import time

import pytest
from rewards_pools import alive, answers, score, texts

from verl_core.config.errors import UserError
from verl_core.config.schema import CustomRewardConfig, RewardConfig
from verl_core.rewards.pool import ScoreRequest, ScorerPool


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
    """400 answers of 10 ms take 4 s one after the other."""
    pool = user_pool("time.sleep(0.01)\nreturn 1", timeout_s=5, num_workers=8)
    score(pool, texts(*"abcdefgh"))
    began = time.perf_counter()
    assert all(v.reward == 1.0 for v in score(pool, texts(*["a"] * 400)))
    assert time.perf_counter() - began < 3


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
