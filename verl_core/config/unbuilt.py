"""What a configuration asks for that this release plans and dry-runs, but does not run yet."""

from collections.abc import Iterator

from verl_core.config.catalogue import KINDS, entry, names
from verl_core.config.effective import strategies
from verl_core.config.schema import RlxConfig

RUNS_TODAY = {
    "actor.strategy": "fsdp",
    "critic.strategy": "fsdp",
}
"""Keys of which one value runs today."""


def unbuilt(config: RlxConfig) -> Iterator[str]:
    """A line for each part of an effective configuration that comes with a later release, with what runs today."""
    c = config
    algorithm = entry("algorithm", c.algorithm.name)
    if not algorithm.built:
        yield _later(f"algorithm.name={c.algorithm.name}", f"{', '.join(names('algorithm', built=True))} run today")
    if "megatron" in strategies(c):
        yield _later("strategy=megatron", "actor.strategy=fsdp runs today")


def only_today(key: str) -> str | None:
    """What runs today of a key of which not everything does; None for a key of which everything does."""
    if key in RUNS_TODAY:
        return f"{key}={RUNS_TODAY[key]}"
    if key in KINDS:
        kind = KINDS[key]
        built = names(kind, built=True)
        return f"{key}={' or '.join(built)}" if built != names(kind) else None
    return None


def _later(what: str, today: str) -> str:
    return f"{what} comes with a later release of rlx; {today}"
