"""A language model behind an OpenAI-compatible endpoint (POST <url>/chat/completions), asked with patience and within
limits."""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import dataclass
from typing import Any, Protocol

from verl_core.config.errors import UserError
from verl_core.config.schema_reward_models import JudgeConfig
from verl_core.rewards.verdict import TIMEOUT

LONGEST_REPLY = 4 << 20  # bytes of a response's body
LONGEST_WAIT_S = 30.0  # between two attempts, whatever the server asks for
_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}  # statuses that may go away by themselves


class Unanswered(Exception):
    """The model gave no usable reply; the text says why. `again`: another attempt may help, after so many seconds where
    the server says how long."""

    def __init__(self, reason: str, again: bool = False, after_s: float | None = None):
        super().__init__(reason)
        self.again, self.after_s = again, after_s


@dataclass(frozen=True)
class Reply:
    """`whole`: the model ended it; false: it was cut off."""

    text: str
    whole: bool


class LanguageModel(Protocol):
    """What a judge speaks with. `name` tells it from others."""

    name: str

    async def answer(self, prompt: str) -> Reply:
        """To one user message. Raises Unanswered."""
        ...

    async def close(self) -> None: ...


class Endpoint:
    """Lives on one event loop. `pause_s`: before the second attempt; it doubles with each further one.

    Raises UserError where the key's variable is not set, and for a key or an address that no request can carry.
    """

    def __init__(self, cfg: JudgeConfig, pause_s: float = 0.5):
        import httpx

        self.cfg, self.name, self._pause_s, self.sent = cfg, str(cfg.model), pause_s, 0
        self._httpx = httpx
        self._places = asyncio.Semaphore(cfg.max_concurrent)
        limits = httpx.Limits(max_connections=cfg.max_concurrent)
        # the time of the whole is limited below; compressed replies could be far larger than what is counted
        headers = {"Accept-Encoding": "identity", **_authorization(cfg)}
        secure = str(cfg.url).startswith("https:")  # plain http has no certificates, and reading them takes long
        self._client = httpx.AsyncClient(headers=headers, limits=limits, timeout=None, verify=secure)
        try:
            self._address = httpx.URL(f"{str(cfg.url).rstrip('/')}/chat/completions")
        except httpx.InvalidURL as error:
            raise UserError(f"reward.judge.url={cfg.url} is no address: {error}") from error

    async def answer(self, prompt: str) -> Reply:
        """Tries again where that may help. A request that waits for its next attempt keeps its place among the
        concurrent ones, so that a server under load gets fewer."""
        async with self._places:
            for attempt in range(self.cfg.retries + 1):
                try:
                    return await self._once(prompt)
                except Unanswered as failure:
                    if not failure.again or attempt == self.cfg.retries:
                        raise
                    await asyncio.sleep(self._wait_s(attempt, failure.after_s))
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        await self._client.aclose()

    def _wait_s(self, attempt: int, asked_s: float | None) -> float:
        wait = self._pause_s * 2**attempt * random.uniform(0.5, 1.5) if asked_s is None else asked_s
        return min(wait, LONGEST_WAIT_S)

    async def _once(self, prompt: str) -> Reply:
        if self.cfg.max_requests is not None and self.sent >= self.cfg.max_requests:
            raise Unanswered(f"the budget of {self.cfg.max_requests} requests to the judge is spent")
        self.sent += 1
        usual = {"temperature": self.cfg.temperature, "max_tokens": self.cfg.max_tokens} | self.cfg.extra_body
        body = {name: value for name, value in usual.items() if value is not None}
        body |= {"model": self.cfg.model, "messages": [{"role": "user", "content": prompt}]}
        try:
            async with asyncio.timeout(self.cfg.timeout_s):
                return _reply(await self._post(body))
        except TimeoutError:
            raise Unanswered(f"{TIMEOUT} the judge took longer than {self.cfg.timeout_s:g} s", again=True) from None
        except (self._httpx.HTTPError, self._httpx.StreamError) as error:
            raise Unanswered(f"the connection to the judge failed: {type(error).__name__}", again=True) from error

    async def _post(self, body: dict[str, Any]) -> bytes:
        # lone surrogates, which no UTF-8 has, go out as JSON's escapes
        content, kind = json.dumps(body).encode("ascii"), {"Content-Type": "application/json"}
        async with self._client.stream("POST", self._address, content=content, headers=kind) as response:
            status = response.status_code
            if status != 200:
                after_s = _seconds(response.headers.get("Retry-After"))
                raise Unanswered(f"the judge's endpoint answered with status {status}", status in _AGAIN, after_s)
            found = bytearray()
            async for piece in response.aiter_raw():
                found += piece
                if len(found) > LONGEST_REPLY:
                    raise Unanswered(f"the judge's reply is longer than {LONGEST_REPLY >> 20} MiB")
            return bytes(found)


def _authorization(cfg: JudgeConfig) -> dict[str, str]:
    if cfg.api_key_env is None:
        return {}
    if not (key := os.environ.get(cfg.api_key_env)):
        raise UserError(
            f"reward.judge.api_key_env={cfg.api_key_env}: that variable is not set", f"export {cfg.api_key_env}=..."
        )
    if not (key.isascii() and key.isprintable()):
        raise UserError(
            f"reward.judge.api_key_env={cfg.api_key_env} holds characters that no header can, such as a line break",
            f"export {cfg.api_key_env}=...",
        )
    return {"Authorization": f"Bearer {key}"}


def _reply(body: bytes) -> Reply:
    """Of a chat completion's first choice."""
    try:
        choice = json.loads(body)["choices"][0]
        text, finish = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise Unanswered("the judge's endpoint did not answer with a chat completion", again=True) from None
    if not isinstance(text, str):
        raise Unanswered("the judge replied with no text")
    return Reply(text, whole=finish == "stop")


def _seconds(header: str | None) -> float | None:
    """Of a Retry-After header that gives seconds; null for a date, or none."""
    return float(header) if header is not None and header.isascii() and header.isdigit() else None
