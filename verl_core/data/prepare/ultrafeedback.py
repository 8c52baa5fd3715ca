"""UltraFeedback (Cui et al. 2023, arXiv 2310.01377) as pairs, in the binarized form of Zephyr (arXiv 2310.16944): of
four answers the best against another one. 61,135 training and 2,000 test pairs, MIT licence."""

from verl_core.config.schema import DataConfig
from verl_core.data.example_rows import pair
from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import Record, pair_row, published
from verl_core.data.prepare.source import Layout
from verl_core.data.rows import number_at

LAYOUT = Layout(
    "HuggingFaceH4/ultrafeedback_binarized",
    {"train": "train_prefs", "test": "test_prefs"},
    "prompt, chosen, rejected, score_chosen, score_rejected",
)


def prepare(wanted: Wanted) -> Prepared:
    """Rows with prompt, chosen and rejected as messages. Raises UserError (`published`)."""
    return published(wanted, LAYOUT, _row, lenient=True)


def _row(record: Record, split: str, index: int) -> Row:
    scores = {key: number_at(record, key) for key in ("score_chosen", "score_rejected") if record.get(key) is not None}
    return pair_row(LAYOUT.hub, pair(record, "", 0, DataConfig()), split, index, **scores)
