"""What it costs to run programs that nobody trusts.

    python tests/benchmarks/bench_sandbox.py [programs]

Milliseconds of one program that does nothing (median): a bare interpreter, the same under plain limits, in bubblewrap's
namespaces; of one scored answer by its form of tests; and answers/s of the scorer pool with two processes. One JSON
line.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

from verl_core.config.schema import RewardConfig
from verl_core.config.schema_sandbox import SandboxConfig
from verl_core.rewards.code import compute_score
from verl_core.rewards.pool import ScoreRequest, ScorerPool
from verl_core.rewards.sandbox.bubblewrap import Bubblewrap
from verl_core.rewards.sandbox.interpreter import FLAGS
from verl_core.rewards.sandbox.protocol import Limits
from verl_core.rewards.sandbox.rlimits import Rlimits

PROGRAM = "```python\ndef f(n):\n    return n * n\nif __name__ == '__main__':\n    print(f(int(input())))\n```"
GOLDS = {
    "calls": {"tests": ["assert f(2) == 4", "assert f(3) == 9", "assert f(-1) == 1"]},
    "tests": {"tests": ["def check(candidate):\n    assert candidate(2) == 4\ncheck(candidate)"], "entry_point": "f"},
    "printed": {"inputs": ["2\n", "3\n", "-1\n"], "outputs": ["4", "9", "1"]},
}


def median_ms(run: Callable[[], object], rounds: int) -> float:
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        took.append(1000 * (time.perf_counter() - start))
    return round(median(took), 2)


def pool_rate(answers: int) -> float:
    """Answers of three calls a second, all right."""
    requests = [ScoreRequest("mbpp", PROGRAM, json.dumps(GOLDS["calls"]))] * answers
    with ScorerPool(RewardConfig(num_workers=2)) as pool:
        pool.check(["mbpp"])
        start = time.perf_counter()
        verdicts = asyncio.run(pool.score(requests))
        rate = answers / (time.perf_counter() - start)
    assert all(verdict.reward == 1.0 for verdict in verdicts)
    return round(rate, 1)


def main(programs: int) -> None:
    load = os.getloadavg()[0]
    bare = [sys.executable, *FLAGS, "-c", "pass"]
    config = SandboxConfig(type="bubblewrap", timeout_s=60.0)
    line = {
        "programs": programs,
        "load_before": load,
        "start_ms": {
            "bare": median_ms(lambda: subprocess.run(bare, check=True), programs),
            "rlimits": median_ms(lambda: Rlimits().run("pass", b"", Limits()), programs),
            "bubblewrap": median_ms(lambda: Bubblewrap().run("pass", b"", Limits()), programs),
        },
        "answer_ms": {
            form: median_ms(lambda gold=gold: compute_score("code", PROGRAM, gold, sandbox=config), programs)
            for form, gold in GOLDS.items()
        },
        "answers_per_s": pool_rate(4 * programs),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
