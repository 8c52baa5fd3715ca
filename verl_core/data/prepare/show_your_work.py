"""The embedded task as files: for looking at it, and for engines and tools that read Parquet."""

from verl_core.config.errors import UserError
from verl_core.data import show_your_work
from verl_core.data.prepare.prepared import Prepared, Wanted

SEED = 0  # the split of `trainer.seed=0`


def prepare(wanted: Wanted) -> Prepared:
    """1,699 training and 200 held-out problems, at most `limit` each. Raises UserError when given a source."""
    if wanted.source is not None:
        raise UserError(
            f"show-your-work is made, not read: --source {wanted.source} has no meaning", hint="leave --source out"
        )
    splits = {split: show_your_work.rows(split, SEED)[: wanted.limit] for split in ("train", "test")}  # type: ignore[arg-type]
    return Prepared(splits, f"made with seed {SEED}")
