"""Stored tensors against those that a model has."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def misfits(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """What is missing, unknown or of another shape in `given`, the first three by name; empty where all fits."""
    wrong = [f"{name} is missing" for name in own.keys() - given.keys()]
    wrong += [f"{name} is unknown" for name in given.keys() - own.keys()]
    wrong += [
        f"{name} has shape {list(given[name].shape)}, not {list(own[name].shape)}"
        for name in own.keys() & given.keys()
        if own[name].shape != given[name].shape
    ]
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return "; ".join(sorted(wrong)[:3]) + more
