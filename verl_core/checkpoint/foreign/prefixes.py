"""The prefix that a trainer puts before the names of its model: `model.`, `module.`, `app.model.`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from verl_core.checkpoint.huggingface import model_code
from verl_core.checkpoint.merge_whole import architecture
from verl_core.config.errors import UserError

_OF_OPTIMIZER = ("optim", "optimizer", "optimizers", "lr_scheduler")


def expected_names(huggingface: Path | None, role: str) -> Collection[str]:
    """The names that the model has by its config; none where these cannot be told, or code would have to run for it."""
    return architecture(huggingface, role).state_dict() if huggingface and not model_code(huggingface) else ()


def without_prefix(stored: Collection[str], expected: Collection[str], where: str) -> dict[str, str]:
    """Name in the model -> stored name. Optimizer state is left out; what lies beside the model keeps its name, so that
    it is told as unknown.

    The prefix is the one before most of the `expected` names. Raises UserError where two have as many: a model and its
    reference, of which only a person knows the trained one.
    """
    stored = [name for name in stored if name.partition(".")[0] not in _OF_OPTIMIZER]
    counts: Counter[str] = Counter()
    for name in stored:
        parts = name.split(".")
        for cut in range(len(parts)):
            if ".".join(parts[cut:]) in expected:
                counts["".join(f"{part}." for part in parts[:cut])] += 1
    best = [prefix for prefix, count in counts.items() if count == max(counts.values())]
    if len(best) > 1:
        names = " and ".join(repr(prefix) for prefix in sorted(best))
        raise UserError(f"{where} holds two models, under {names}", "save only the one that was trained")
    prefix = best[0] if best else ""
    return {name.removeprefix(prefix): name for name in stored}
