"""Answers for the tests of the scorer pool."""

import asyncio
from pathlib import Path

from verl_core.rewards.pool import ScoreRequest


def answers(n, text="#### {i}"):
    return [ScoreRequest("openai/gsm8k", text.format(i=i), str(i)) for i in range(n)]


def texts(*solutions):
    return [ScoreRequest("mine", s, "7", {"index": i}) for i, s in enumerate(solutions)]


def score(pool, requests):
    return asyncio.run(pool.score(requests))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
