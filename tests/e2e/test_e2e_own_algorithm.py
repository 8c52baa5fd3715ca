"""The algorithm that `rlx init` writes, trained by the real command: alone and on two ranks, resumed, changed."""

import json
from pathlib import Path

import pytest

from rlx import templates
from tests.e2e.conftest import records, run_dir_of


@pytest.mark.slow
def test_an_algorithm_of_the_users_own_file(rlx, small, tmp_path: Path):
    (tmp_path / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, **_):\n    return len(solution_str) / 20\n"
    )
    (tmp_path / "algorithm.py").write_text(templates.fill("project/algorithm.py", {}))
    own = ["algorithm.module=algorithm.py", "algorithm.name=mine", "reward.custom_reward_function.path=reward.py"]
    done = rlx(*small("smoke", steps=1), *own, "cluster.nproc=2")
    assert done.returncode == 0, done.stderr
    run = run_dir_of(tmp_path)
    first = records(run)[-1]
    assert first["actor/grad_norm"] > 0 and first["critic/advantages/min"] < 0 < first["critic/advantages/max"]
    assert (run / "algorithm.py").read_text() == (tmp_path / "algorithm.py").read_text()
    assert len(json.loads((run / "run.json").read_text())["algorithm_module"]["sha256"]) == 64

    with (tmp_path / "algorithm.py").open("a") as file:
        file.write("# another text\n")
    done = rlx(*small("smoke", steps=2), *own, "--resume")
    assert done.returncode == 0, done.stderr
    assert "algorithm.module: the text of algorithm.py" in done.stderr
    assert records(run)[-1]["step"] == 2
