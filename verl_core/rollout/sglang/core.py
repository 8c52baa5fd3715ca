"""Feeds SGLang with the rows of a StepLoop and collects what it draws.

SGLang steps by itself. Where the loop wants it to stand still (update, sleep, pause), the rows that run are taken
out with what they have and handed in again, as longer prompts, afterwards. So each hand-in is wholly one version's, and
as draws are keyed by position the row goes on as if nothing had happened.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from queue import Empty
from typing import Any

import torch
from torch import Tensor

from verl_core.config.errors import RunError, UserError
from verl_core.rollout.rows import Row
from verl_core.rollout.sglang.options import FIRST_ADAPTER, SglangOptions
from verl_core.rollout.sglang.sampling import sampling_words
from verl_core.rollout.sglang.server import News, Server
from verl_core.rollout.sglang.weights import buckets

_STEP_S = 0.02  # longest wait for news: what other threads want is done in between
_AGAIN_S = 1.0  # between two tries to end a request


@dataclass
class _Run:
    """A row's stay in SGLang. `key` is None when the row has left and only its end is awaited."""

    key: str | None
    drawn: int = 0


class SglangCore:
    """Keeps `verl_core.rollout.stepping.Stepper`; used from one thread."""

    def __init__(self, options: SglangOptions, server: Server):
        self.version = 0
        self.has_weights = options.load_format == "auto"
        self._options, self._server = options, server
        self._eos_ids = frozenset(options.eos_ids)
        config = options.model_json()
        self._vocabulary: int = config.get("text_config", config)["vocab_size"]
        self._rows: dict[str, Row] = {}
        self._runs: dict[str, _Run] = {}
        self._parked: list[str] = []
        self._numbers = itertools.count()
        self._adapter = FIRST_ADAPTER if options.lora is not None else None
        self._asleep = list[str]()  # parts of the memory, by SGLang's names

    def add(self, key: str, row: Row) -> None:
        """Takes a row in. Raises RunError while there are no weights or the engine is asleep, UserError for an id
        that is not of the vocabulary."""
        if not self.has_weights:
            raise RunError("the sglang engine has no weights", "call update_weights before generate")
        if self._asleep:
            raise RunError("the sglang engine is asleep", "call wake before generate")
        highest = max(row.request.ids)
        if highest >= self._vocabulary:
            what = f"request {row.request.request_id!r} has the id {highest}"
            raise UserError(f"{what}; the model's vocabulary has {self._vocabulary}")
        self._rows[key] = row
        self._hand_in(key)

    def drop(self, keys: Iterable[str]) -> None:
        gone = {key for key in keys if self._rows.pop(key, None) is not None}
        self._parked = [key for key in self._parked if key not in gone]
        for rid, run in self._runs.items():
            if run.key in gone:
                run.key = None
                self._server.abort(rid)

    def step(self) -> list[str]:
        """Takes what SGLang has drawn, waiting a little. Raises RunError where an update has failed under rows that
        run: parts of two versions draw no token."""
        if not self.has_weights:
            raise RunError("an update of the sglang engine's weights failed while rows ran", "start the engine again")
        for key in self._parked:
            self._hand_in(key)
        self._parked = []
        return self._collect(_STEP_S)

    def settle(self) -> list[str]:
        """Takes every row out, with all that was drawn for it."""
        ended, tried = list[str](), 0.0
        while self._runs:
            if time.monotonic() - tried > _AGAIN_S:
                tried = time.monotonic()
                for rid in self._runs:
                    self._server.abort(rid)
            ended += self._collect(_STEP_S)
        return ended

    def update_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Writes a full set of weights, already checked by name, into the model. After an error the engine has none."""
        if self._options.lora is not None:
            raise RunError("this engine serves an adapter over fixed weights", "call load_adapter")
        if "weights" in self._asleep:
            self._take_back("weights")
        self.has_weights = False
        for bucket in buckets(stream):
            self._server.take_weights(bucket)
        if "kv_cache" not in self._asleep:
            self._server.forget_cache()
        self.version, self.has_weights = version, True

    def load_adapter(self, folder: str, version: int) -> None:
        """Takes a PEFT adapter from a folder in place of the present one; tokens drawn afterwards carry `version`."""
        old, new = self._adapter, f"adapter-{version}-{next(self._numbers)}"
        self._server.load_adapter(new, folder)
        self._adapter, self.version = new, version
        if old is not None:
            self._server.drop_adapter(old)

    def sleep(self) -> None:
        if self._asleep:
            return
        self._server.forget_cache()
        self._asleep = ["kv_cache", "weights", "cuda_graph"] if torch.cuda.is_available() else ["kv_cache"]
        self._server.release(self._asleep)
        if "weights" in self._asleep and self._options.sleep_level == 2:
            self.has_weights = False

    def wake(self) -> None:
        for part in ("weights", "cuda_graph", "kv_cache"):
            if part in self._asleep:
                self._take_back(part)

    def close(self) -> None:
        self._server.close()

    def _take_back(self, part: str) -> None:
        self._server.take_back([part])
        self._asleep.remove(part)

    def _hand_in(self, key: str) -> None:
        row = self._rows[key]
        rid = f"{next(self._numbers)}."  # none is the beginning of another, as SGLang aborts by beginnings
        self._runs[rid] = _Run(key)
        self._server.start(rid, [*row.request.ids, *row.ids], sampling_words(row, self._eos_ids), self._adapter)

    def _collect(self, seconds: float) -> list[str]:
        """What has come, at least one piece of news or after `seconds`; the keys of rows that ended."""
        self._server.check()
        ended, news = list[str](), self._server.news
        try:
            ended += self._hear(news.get(timeout=seconds))
            while True:
                ended += self._hear(news.get_nowait())
        except Empty:
            return ended

    def _hear(self, news: News) -> list[str]:
        rid, said = news
        run = self._runs[rid]
        if isinstance(said, Exception):
            raise RunError(f"sglang ended a request: {said}") from said
        if said is None:  # SGLang is through with it
            del self._runs[rid]
            if run.key is not None:  # the row is not: it was taken out, or SGLang knows an end id that we do not
                self._parked.append(run.key)
            return []
        if run.key is None:
            return []
        row = self._rows[run.key]
        for token, logp in _drawn(said, run):
            row.push(token, logp, self.version, self._eos_ids)
            if row.finish is not None:
                return self._leave(rid, run)
        return []

    def _leave(self, rid: str, run: _Run) -> list[str]:
        key, run.key = run.key, None
        assert key is not None
        del self._rows[key]
        self._server.abort(rid)  # where it ended by a stop string or a NaN; else SGLang knows
        return [key]


def _drawn(part: dict[str, Any], run: _Run) -> list[tuple[int, float]]:
    """The ids and log-probs that are new in a part. One that ends a waiting request repeats its last id, so they are
    counted."""
    meta = part["meta_info"]
    new = meta["completion_tokens"] - run.drawn
    run.drawn += new
    if new == 0:
        return []
    logps = [entry[0] for entry in meta["output_token_logprobs"][-new:]]
    return list(zip(part["output_ids"][-new:], logps, strict=True))
