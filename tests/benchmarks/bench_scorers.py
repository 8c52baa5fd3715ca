r"""Answers a second through the scorer pool, with limits on, without and with answers that hang.

    python tests/benchmarks/bench_scorers.py [--rules N] [--symbolic N] [--limit SECONDS] [--workers N]

One JSON line. Rules: GSM8K answers of about 8,000 characters. Symbolic: pairs that are equal, or nearly so, only as
expressions, no two alike. One answer in a thousand runs a loop that never ends. Beside the pool, in the same run and on
a few of the symbolic answers: math-verify bare (one process, no limit), and a process for each answer (forked with
everything imported, two at a time), which is the plain way to a limit. `lost` counts answers whose verdict is not the
one that the rule gives by itself. The limits are wall-clock time, and for rules, of which none takes a millisecond, a
twentieth of a second of processor time. What hangs symbolically ends at the limit, so that no run with it takes less.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from verl_core.config.schema import CustomRewardConfig, RewardConfig
from verl_core.rewards import gsm8k
from verl_core.rewards import math as math_rule
from verl_core.rewards.pool import ScoreRequest, ScorerPool
from verl_core.rewards.verdict import CPU, TIMEOUT

HANG = "this answer hangs"
RULE = f"""
from verl_core.rewards import {{module}} as rule
getattr(rule, "warm_up", bool)()
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    while solution_str == {HANG!r}:
        pass
    return rule.compute_score(data_source, solution_str, ground_truth, extra_info)
"""


def rule_answers(count: int) -> list[ScoreRequest]:
    """10,000 different ones, each as often as it takes; one in five is wrong."""
    rng = random.Random(0)
    work = [
        " ".join(f"Step {k}: {rng.randint(1, 99)} + {rng.randint(1, 99)} = ?" for k in range(370)) for _ in range(50)
    ]
    distinct = [f"{rng.choice(work)}\n#### {i + (i % 5 == 0):,}" for i in range(min(count, 10_000))]
    return [ScoreRequest("gsm8k", distinct[i % len(distinct)], str(i % len(distinct))) for i in range(count)]


def symbolic_answers(count: int) -> list[ScoreRequest]:
    rng = random.Random(1)
    found: dict[tuple[str, str], None] = {}
    while len(found) < count:
        a, b, c = rng.randint(2, 999), rng.randint(2, 999), rng.randint(2, 99)
        near = rng.choice((0, 0, 1))  # one in three is wrong
        gold, answer = rng.choice(
            [
                (rf"(x+{a})(x+{b})", rf"x^2+{a + b + near}x+{a * b}"),
                (rf"\frac{{{a}x+{b}}}{{{c}}}", rf"\frac{{{a}x}}{{{c}}}+\frac{{{b + near}}}{{{c}}}"),
                (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b + near}}}"),
                (rf"\frac{{{a}}}{{x+{b}}}+\frac{{1}}{{x}}", rf"\frac{{{a + 1}x+{b + near}}}{{x(x+{b})}}"),
                (rf"({a}y-{c})^2", rf"{a * a}y^2-{2 * a * c}y+{c * c + near}"),
            ]
        )
        found[gold, answer] = None
    return [ScoreRequest("math", rf"So it is \boxed{{{answer}}}.", gold) for gold, answer in found]


def with_hanging(requests: list[ScoreRequest]) -> list[ScoreRequest]:
    places = set(random.Random(2).sample(range(len(requests)), max(1, len(requests) // 1000)))
    return [ScoreRequest(r.data_source, HANG, r.ground_truth) if i in places else r for i, r in enumerate(requests)]


def by_itself(request: ScoreRequest) -> float:
    rule = gsm8k.compute_score if request.data_source == "gsm8k" else math_rule.compute_score
    return rule(request.data_source, request.solution, request.ground_truth)["score"]


def rule_file(folder: str, module: str) -> CustomRewardConfig:
    """A built-in rule that can be made to hang."""
    file = Path(folder) / f"{module}_rule.py"
    file.write_text(RULE.format(module=module), encoding="utf-8")
    return CustomRewardConfig(str(file))


def through_pool(pool: ScorerPool, requests: list[ScoreRequest]) -> dict[str, float]:
    expected = {key: by_itself(r) for key, r in {(r.solution, r.ground_truth): r for r in requests}.items()}
    asyncio.run(pool.score([r for r in requests[:1000] if r.solution != HANG]))  # both processes are there
    plain, hanging = requests, with_hanging(requests)
    seconds, lost = {}, 0
    for name, those in (("plain", plain), ("hanging", hanging)):
        began = time.perf_counter()
        verdicts = asyncio.run(pool.score(those))
        seconds[name] = time.perf_counter() - began
        for request, verdict in zip(those, verdicts, strict=True):
            if request.solution == HANG:
                lost += verdict.error is None or not verdict.error.startswith((TIMEOUT, CPU))
            else:
                lost += verdict.error is not None or verdict.reward != expected[request.solution, request.ground_truth]
    return {
        "answers": len(requests),
        "hanging": sum(r.solution == HANG for r in hanging),
        "per_s": round(len(requests) / seconds["plain"]),
        "per_s_hanging": round(len(requests) / seconds["hanging"]),
        "time_ratio": round(seconds["hanging"] / seconds["plain"], 3),
        "lost": lost,
    }


def math_verify_bare(requests: list[ScoreRequest]) -> float:
    from math_verify import parse, verify

    began = time.perf_counter()
    for r in requests:
        verify(
            parse(f"${r.ground_truth}$", parsing_timeout=None),
            parse(r.solution, parsing_timeout=None),
            timeout_seconds=None,
        )
    return len(requests) / (time.perf_counter() - began)


def process_a_sample(requests: list[ScoreRequest], limit_s: float) -> float:
    context = multiprocessing.get_context("fork")

    def one(request: ScoreRequest) -> None:
        child = context.Process(target=by_itself, args=(request,))
        child.start()
        child.join(limit_s)
        child.kill()

    with ThreadPoolExecutor(2) as threads:
        began = time.perf_counter()
        list(threads.map(one, requests))
        return len(requests) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", type=int, default=300_000, help="answers of the first set")
    parser.add_argument("--symbolic", type=int, default=10_000, help="answers of the second set")
    parser.add_argument("--limit", type=float, default=1.0, help="reward.timeout_s")
    parser.add_argument("--rules-cpu", type=float, default=0.05, help="reward.cpu_s of the first set")
    parser.add_argument("--workers", type=int, default=2, help="reward.num_workers")
    args = parser.parse_args()
    loaded = os.getloadavg()[0]
    symbolic = symbolic_answers(args.symbolic)
    with tempfile.TemporaryDirectory() as folder:
        limits = {"num_workers": args.workers, "timeout_s": args.limit}
        with ScorerPool(RewardConfig(rule_file(folder, "gsm8k"), cpu_s=args.rules_cpu, **limits)) as pool:
            rules_found = through_pool(pool, rule_answers(args.rules))
        with ScorerPool(RewardConfig(rule_file(folder, "math"), **limits)) as pool:
            symbolic_found = through_pool(pool, symbolic)
    few = symbolic[:300]
    print(
        json.dumps(
            {
                "rules": rules_found,
                "symbolic": symbolic_found,
                "math_verify_bare_per_s": round(math_verify_bare(few)),
                "process_a_sample_per_s": round(process_a_sample(few, args.limit)),
                "limit_s": args.limit,
                "rules_cpu_s": args.rules_cpu,
                "workers": args.workers,
                "cores": os.cpu_count(),
                "load_before": round(loaded, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
