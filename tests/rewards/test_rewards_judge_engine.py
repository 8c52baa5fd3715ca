"""A judge of one's own, which generates in a process of its own."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.controller.controller_tiny import tiny_model
from verl_core.config.schema_reward_models import JudgeConfig
from verl_core.controller.judging import OwnEngine
from verl_core.rewards.models.endpoint import Unanswered
from verl_core.rewards.models.judge import Judge
from verl_core.rewards.verdict import ScoreRequest

PROMPT = [{"role": "user", "content": "2 + 3?"}]


@pytest.mark.slow
def test_it_answers_the_same_again_and_says_why_it_gives_no_score(tmp_path: Path):
    path = str(tiny_model(tmp_path / "model"))
    cfg = JudgeConfig(engine="hf", path=path, instruction="Judge.", max_tokens=8, temperature=1.0, timeout_s=30.0)
    engine = OwnEngine(cfg)

    async def alone() -> None:
        asked = ["Is 2 + 3 = 5?", "Is 2 + 3 = 6?", "Is 2 + 3 = 7?<|im_end|>"]
        first = await asyncio.gather(*map(engine.answer, asked))
        assert [await engine.answer(text) for text in asked] == first and len({reply.text for reply in first}) == 3
        with pytest.raises(Unanswered, match="no room within its 512 tokens"):
            await engine.answer("5 " * 5000)

        os.kill(engine._engine.pid, signal.SIGKILL)
        with pytest.raises(Unanswered, match="the judge's engine ended"):
            await engine.answer("Is 2 + 3 = 8?")

    asyncio.run(alone())
    judge = Judge(cfg, lambda: engine, None, seed=0)
    try:
        (verdict,) = asyncio.run(judge.score([ScoreRequest("s", "5", None, {}, PROMPT)]))  # its prompt is longer
        assert verdict.reward == 0 and "no room" in verdict.error
    finally:
        judge.close()
