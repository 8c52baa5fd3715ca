"""The factory of SGLang engines for machines without a GPU: `verl_core.rollout.sglang` but for the look at it."""

from __future__ import annotations

from typing import Any

from verl_core.rollout.sglang.factory import start
from verl_core.rollout.sglang.options import SglangOptions


def make(**options: Any) -> Any:
    settings = SglangOptions(**options | {"eos_ids": tuple(options["eos_ids"])})
    settings.check()
    return start(settings, None)
