"""Competition mathematics of DAPO (Yu et al. 2025, arXiv 2503.14476): DAPO-Math-17k to train on, AIME 2024 to validate.

Both are published in veRL's columns, with a prompt that asks for a last line `Answer: ...`, and with every row many
times over (about 100 and 32 times), which would make an epoch a hundred. Here each problem is kept once.
"""

from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import Record, published
from verl_core.data.prepare.source import Layout
from verl_core.data.rows import parse_row

_COLUMNS = "data_source, prompt, ability, reward_model, extra_info"
LAYOUTS = {
    "dapo-math-17k": Layout(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        {"train": "train"},
        _COLUMNS,
        files=("data/dapo-math-17k.parquet", "dapo-math-17k.parquet"),
    ),
    "aime-2024": Layout(
        "BytedTsinghua-SIA/AIME-2024",
        {"test": "test"},
        _COLUMNS,
        files=("data/aime-2024.parquet", "aime-2024.parquet"),
    ),
}


def prepare(wanted: Wanted) -> Prepared:
    """The published rows with their own prompt, each once. Raises UserError (`published`)."""
    return published(wanted, LAYOUTS[wanted.name], _row, same=lambda row: row["prompt"][-1]["content"])


def _row(record: Record, split: str, index: int) -> Row:
    raw = parse_row(record, "", 0, "prompt", "data_source")
    gold = str(raw.ground_truth)
    return {
        "data_source": raw.data_source,
        "prompt": raw.messages,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {
            "split": split,
            "index": index,
            "answer": f"Answer: {gold}",
            "id": str(raw.extra_info.get("index")),
        },
    }
