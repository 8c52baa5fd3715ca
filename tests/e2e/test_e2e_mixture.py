"""A run on a mixture in the order of a curriculum: shares, names, and the same run after a stop."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.conftest import run_dir_of, same_after_a_stop
from verl_core.data.show_your_work import rows

CURRICULUM = """
class Backwards:
    def __init__(self, rows, seed):
        self.count, self.visits = len(rows), 0

    def order(self, epoch):
        left = max(2, self.count - self.visits)  # hangs on what was heard before the epoch began
        return list(range(left))[::-1]

    def update(self, step, visits):
        self.visits += len(visits)

    def state(self):
        return self.visits

    def load_state(self, state):
        self.visits = state
"""


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, object]:
    """Two files with levels of difficulty, as keys."""
    made = rows("train", 0)
    keys: dict[str, object] = {}
    for name, count, weight in (("easy", 6, 3), ("hard", 20, 1)):
        own, made = made[:count], made[count:]
        for i, row in enumerate(own):
            row["extra_info"] = {"level": i % 3}
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own), encoding="utf-8")
        keys |= {f"data__mixture__{name}__files": tmp_path / f"{name}.jsonl", f"data__mixture__{name}__weight": weight}
    return keys


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_a_mixture_in_a_curriculums_order_is_the_same_run_after_a_stop(train_here, small, sources, tmp_path, own):
    (tmp_path / "own.py").write_text(CURRICULUM)
    curriculum = {"by": "extra_info.level", "drop_solved": 1}
    if own:
        curriculum = {"path": tmp_path / "own.py", "name": "Backwards"}
    keys = sources | {f"data__curriculum__{key}": value for key, value in curriculum.items()}
    words = small("smoke", steps=4, data__val_files="null", trainer__parity="off", **keys)
    lines = same_after_a_stop(train_here, words, until=2)
    groups = Counter(
        json.loads(line)["group"].split("/")[0]
        for file in (run_dir_of(tmp_path) / "rollouts").iterdir()
        for line in file.read_text().splitlines()
    )
    assert groups["easy"] == 3 * groups["hard"] > 0
    assert lines[-1]["training/epoch/easy"] >= 1 and "training/curriculum_prompts/hard" in lines[-1]
