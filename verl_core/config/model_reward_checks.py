"""What a reward model and a judge ask of other keys."""

from collections.abc import Iterator
from itertools import pairwise
from math import isfinite
from urllib.parse import urlsplit

from verl_core.config.key_checks import Said
from verl_core.config.schema import RlxConfig

_MODEL, _JUDGE = "reward.reward_model", "reward.judge"


def model_reward_faults(said: Said, e: RlxConfig) -> Iterator[str]:
    """Of an effective configuration that generates answers."""
    if "reward_model" in e.reward.scorers:
        yield from _reward_model(said, e)
    if "judge" in e.reward.scorers:
        yield from _judge(said, e)


def _reward_model(said: Said, e: RlxConfig) -> Iterator[str]:
    own = e.reward.reward_model
    if own.path is None:
        yield f"reward.scorers names reward_model: set {_MODEL}.path to its folder or hub name"
    elif own.path.startswith("builtin:"):
        yield f"{said(f'{_MODEL}.path')}: there is no builtin reward model; `rlx train smoke-rm` trains one"
    cuts = [f"{_MODEL}.{name}" for name in ("micro_batch_size_per_gpu", "max_token_len_per_gpu")]
    if all(said.value(key) is not None for key in cuts):
        yield f"{' and '.join(map(said, cuts))} exclude each other: set one of them to null"
    longest, budget = own.max_length, own.max_token_len_per_gpu
    # the score is read off one token behind the conversation
    if longest is not None and budget is not None and longest >= budget:
        yield f"{said(f'{_MODEL}.max_length')} does not fit: a forward has {budget - 1} tokens for a conversation"


def _judge(said: Said, e: RlxConfig) -> Iterator[str]:
    own = e.reward.judge
    if own.engine is None:
        yield from _endpoint(said, e)
    else:
        for name in ("url", "model", "api_key_env"):
            if getattr(own, name) is not None:
                yield f"{said(f'{_JUDGE}.{name}')} is of an endpoint, and {said(f'{_JUDGE}.engine')} needs none"
        if own.path is None:
            yield f"{said(f'{_JUDGE}.engine')}: set {_JUDGE}.path to the judge's folder or hub name"
    low, high = own.scale
    if not low < high:
        yield f"{said(f'{_JUDGE}.scale')}: the lowest number comes first, and the highest is above it"
    if len(own.labels) == 1:
        yield f"{said(f'{_JUDGE}.labels')}: a judge needs at least two labels to choose from"
    for label, reward in own.labels.items():
        if not isfinite(reward):
            yield f"{_JUDGE}.labels.{label}={reward} is not a finite number"
        if not label or label != label.strip() or len(label.splitlines()) != 1 or ", " in label:
            yield f"{_JUDGE}.labels: {label!r} is no plain word or phrase of one line"
    for one, other in pairwise(sorted(own.labels, key=str.casefold)):
        if one.casefold() == other.casefold():
            yield f"{_JUDGE}.labels: {one!r} and {other!r} differ in nothing but their case"


def _endpoint(said: Said, e: RlxConfig) -> Iterator[str]:
    own = e.reward.judge
    if own.path is not None:
        yield f"{said(f'{_JUDGE}.path')} is of a judge of one's own: set {_JUDGE}.engine=hf"
    if own.url is None:
        yield f"reward.scorers names judge: set {_JUDGE}.url and .model, or {_JUDGE}.engine=hf and {_JUDGE}.path"
        return
    if taken := sorted({"messages", "model", "n", "stream"} & own.extra_body.keys()):
        yield f"{_JUDGE}.extra_body: {', '.join(taken)} cannot be set there"
    if own.model is None:
        yield f"{said(f'{_JUDGE}.url')}: set {_JUDGE}.model to the name of the model there"
    try:
        parts = urlsplit(own.url)
        well = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        well = False
    if not well or parts.query or parts.fragment:
        yield f"{said(f'{_JUDGE}.url')}: expected an address like http://host:8000/v1"
    elif own.url.rstrip("/").endswith("/chat/completions"):
        yield f"{said(f'{_JUDGE}.url')}: give the base address, without /chat/completions"
