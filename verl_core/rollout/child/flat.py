"""Requests, parts and completions as flat arrays: one array a quantity for a whole call, not an object a token."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from verl_core.rollout.child.wire import Arrays
from verl_core.rollout.parts import Part
from verl_core.rollout.protocol import Completion, Finish, Sampling, TokenRequest

_FINISH: tuple[Finish | None, ...] = (None, "stop", "length", "abort")
Flat = tuple[dict[str, Any], Arrays]


def pack_requests(requests: Sequence[TokenRequest]) -> Flat:
    kinds: dict[Sampling, int] = {}  # the requests of a step have few different ones
    kind_S = [kinds.setdefault(request.sampling, len(kinds)) for request in requests]
    head = {
        "request_ids": [request.request_id for request in requests],
        "session_ids": [request.session_id for request in requests],
        "seeds": [request.seed for request in requests],  # of any size
        "samplings": [asdict(sampling) for sampling in kinds],
    }
    return head, {
        "ids": _joined([request.ids for request in requests], np.int32),
        "lengths": np.array([len(request.ids) for request in requests], np.int64),
        "kinds": np.array(kind_S, np.int32),
    }


def unpack_requests(head: dict[str, Any], arrays: Arrays) -> list[TokenRequest]:
    samplings = [Sampling(**{**fields, "stop": tuple(fields["stop"])}) for fields in head["samplings"]]
    prompts = _cut(arrays["ids"].tolist(), arrays["lengths"])
    names = zip(head["request_ids"], head["session_ids"], head["seeds"], strict=True)
    return [
        TokenRequest(request_id, session_id, tuple(ids), samplings[kind], seed)
        for (request_id, session_id, seed), ids, kind in zip(names, prompts, arrays["kinds"].tolist(), strict=True)
    ]


def pack_parts(parts: Sequence[Part]) -> Flat:
    return {"extras": {str(i): part.extras for i, part in enumerate(parts) if part.extras}}, {
        "index": np.array([part.index for part in parts], np.int64),
        "lengths": np.array([len(part.ids) for part in parts], np.int64),
        "ids": _joined([part.ids for part in parts], np.int32),
        "logps": _joined([part.logps for part in parts], np.float64),
        "versions": _joined([part.versions for part in parts], np.int64),
        "finish": np.array([_FINISH.index(part.finish) for part in parts], np.uint8),
    }


def unpack_parts(head: dict[str, Any], arrays: Arrays) -> list[Part]:
    lengths = arrays["lengths"]
    columns = zip(
        arrays["index"].tolist(),
        *(_cut(arrays[name].tolist(), lengths) for name in ("ids", "logps", "versions")),
        arrays["finish"].tolist(),
        strict=True,
    )
    return [
        Part(index, ids, logps, versions, _FINISH[code], head["extras"].get(str(i), {}))
        for i, (index, ids, logps, versions, code) in enumerate(columns)
    ]


def pack_completions(completions: Sequence[Completion]) -> Flat:
    return pack_parts([Part(i, c.ids, c.logps, c.versions, c.finish, c.extras) for i, c in enumerate(completions)])


def unpack_completions(requests: Sequence[TokenRequest], head: dict[str, Any], arrays: Arrays) -> list[Completion]:
    done = []
    for request, part in zip(requests, unpack_parts(head, arrays), strict=True):
        assert part.finish is not None
        done.append(Completion(request.request_id, part.ids, part.logps, part.versions, part.finish, part.extras))
    return done


def _joined(lists: Sequence[Sequence[float]], kind: type) -> np.ndarray:
    return np.fromiter(itertools.chain.from_iterable(lists), kind, sum(map(len, lists)))


def _cut(flat: list[Any], lengths: np.ndarray) -> Iterator[list[Any]]:
    ends = np.cumsum(lengths).tolist()
    return (flat[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True))
