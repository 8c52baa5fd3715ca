"""The part `judge`: a language model reads question and answer and gives a number or a label."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from verl_core.config.errors import UserError
from verl_core.config.schema_reward_models import JudgeConfig
from verl_core.rewards.models.cache import JudgementCache
from verl_core.rewards.models.endpoint import LanguageModel, Unanswered
from verl_core.rewards.models.judgement import Labels, NoVerdict, Numbers, read
from verl_core.rewards.models.quoting import ask
from verl_core.rewards.verdict import ScoreRequest, Verdict, failed

FORM = 1  # of what is asked; another one makes the judgements of a cache others


class Judge:
    """Scores answers by what a language model says of them; an answer without a verdict has failed, never scored 0.

    It has an event loop of its own in a thread, so that it may be asked from any loop, as the scorer pool may.

    Args:
        model: makes what is spoken with, on that loop.
        cache: SQLite file of judgements; None: none are kept.
        seed: of the fences and nonces.

    Raises:
        UserError: the instruction or the cache cannot be read, the endpoint's key is not set; whatever `model` raises.
    """

    def __init__(self, cfg: JudgeConfig, model: Callable[[], LanguageModel], cache: Path | None, seed: int):
        self.cfg, self._key = cfg, f"rlx/judge/{seed}".encode()
        self.instruction = instruction_of(cfg)
        self.choices = Labels(cfg.labels) if cfg.labels else Numbers(*cfg.scale)
        self._cache = JudgementCache(cache) if cache is not None else None
        self._open: dict[str, asyncio.Task[Verdict]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judge", daemon=True)
        self._thread.start()
        try:
            self._model = self._run(_made(model)).result()
        except BaseException:
            self._end()
            raise

    def check(self, data_sources: Iterable[str]) -> None:
        """Any row can be judged."""

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Verdict]:
        """One verdict a request, in order. From any thread and event loop."""
        return await asyncio.wrap_future(self._run(self._score(requests)))

    def close(self) -> None:
        """Gives up what is under way. May be called twice."""
        if self._loop.is_closed():
            return
        self._run(self._give_up()).result()
        self._end()

    def _run[T](self, work: Coroutine[Any, Any, T]):
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._cache is not None:
            self._cache.close()

    # --- on the judge's own loop ------------------------------------------------------------------------------------

    async def _give_up(self) -> None:
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await self._model.close()

    async def _score(self, requests: Sequence[ScoreRequest]) -> list[Verdict]:
        keys = [self._cache_key(request) for request in requests]
        known = await self._cache.get(list(dict.fromkeys(keys))) if self._cache is not None else {}
        pairs = zip(keys, requests, strict=True)
        return list(await asyncio.gather(*(self._verdict(key, request, known.get(key)) for key, request in pairs)))

    async def _verdict(self, key: str, request: ScoreRequest, word: str | None) -> Verdict:
        """Equal answers to a question are judged once, also while that is under way."""
        if word is not None:
            with suppress(NoVerdict):  # somebody else has written into the file
                return _judged(self.choices.reward(word), word)
        if (task := self._open.get(key)) is None:
            task = self._open[key] = asyncio.create_task(self._ask(key, request))
            task.add_done_callback(lambda _: self._open.pop(key, None))
        return await asyncio.shield(task)

    async def _ask(self, key: str, request: ScoreRequest) -> Verdict:
        asked = ask(request, self.instruction, self.choices.form, self.cfg.show_ground_truth, self._key)
        try:
            reply = await self._model.answer(asked.text)
            if not reply.whole:
                raise NoVerdict("the judge's reply was cut off: raise reward.judge.max_tokens")
            reward, word = read(reply.text, asked.nonce, self.choices)
        except (Unanswered, NoVerdict) as why:
            return failed(str(why))
        if self._cache is not None:
            await self._cache.put(key, word)
        return _judged(reward, word)

    def _cache_key(self, request: ScoreRequest) -> str:
        """Of all that a judgement depends on."""
        c = self.cfg
        gold = request.ground_truth if c.show_ground_truth else None
        sampling = [c.temperature, c.max_tokens, c.extra_body]
        setting = [FORM, self._model.name, self.instruction, self.choices.form, sampling]
        text = json.dumps([*setting, request.prompt, gold, request.solution], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


async def _made(model: Callable[[], LanguageModel]) -> LanguageModel:
    return model()


def _judged(reward: float, word: str) -> Verdict:
    return Verdict(reward=reward, reason=f"judged {word}")


def instruction_of(cfg: JudgeConfig) -> str:
    """What is judged. Raises UserError for a file that cannot be read."""
    if cfg.instruction_file is None:
        return cfg.instruction
    try:
        return Path(cfg.instruction_file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"reward.judge.instruction_file={cfg.instruction_file} cannot be read: {error}") from error
