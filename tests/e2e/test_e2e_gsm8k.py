"""GSM8K for real: a real 135M chat model trains on real-format GSM8K prompts through the quickstart's profile."""

import gzip
import json
from pathlib import Path

import pytest

from tests.e2e.conftest import records
from tests.support.smollm2 import gguf_file, write_folder

QUESTIONS = [
    ("Ann has 3 boxes of 4 pens each. She gives 2 pens away. How many pens has she left?", "3*4=12\n12-2=10\n#### 10"),
    ("A shop sells 15 cakes a day. How many cakes does it sell in 4 days?", "15*4=60\n#### 60"),
    ("Tom reads 7 pages on Monday and twice as many on Tuesday. How many in all?", "7*2=14\n7+14=21\n#### 21"),
    ("A rope of 1,200 cm is cut into 8 equal parts. How long is each part?", "1200/8=150\n#### 150"),
]


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gguf_file()  # fails with the extra's name before anything is converted
    return write_folder(tmp_path_factory.mktemp("models") / "smollm2")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files in GSM8K's own form, as `--source` takes them."""
    folder = tmp_path / "gsm8k-source"
    folder.mkdir()
    for split, count in (("train", 16), ("test", 4)):
        with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf-8") as out:
            for i in range(count):
                question, answer = QUESTIONS[i % len(QUESTIONS)]
                out.write(json.dumps({"question": f"{question} (case {i})", "answer": answer}) + "\n")
    return folder


@pytest.mark.slow
def test_two_steps_of_the_quickstart_on_the_cpu(rlx, smollm2: Path, source: Path, tmp_path: Path):
    done = rlx("prepare", "gsm8k", "--source", str(source), "--out", str(tmp_path / "data"), "--json")
    assert done.returncode == 0, done.stderr
    words = [
        "rollout.engine=hf",
        "data.train_batch_size=2",
        "actor.ppo_mini_batch_size=2",
        "rollout.n=2",
        "data.max_response_length=24",
        "trainer.total_training_steps=2",
        "trainer.experiment_name=run",
        "data.val_max_samples=1",
        "rollout.max_num_seqs=16",
    ]
    files = [f"data.train_files={tmp_path}/data/train.parquet", f"data.val_files={tmp_path}/data/test.parquet"]
    done = rlx("train", "gsm8k-grpo", f"model.path={smollm2}", *words, *files, timeout=1500)
    assert done.returncode == 0, done.stderr
    run_dir = tmp_path / "runs" / "gsm8k" / "run"
    lines = records(run_dir)
    assert [line["step"] for line in lines][-2:] == [1, 2]
    assert all(line["actor/grad_norm"] >= 0 and line["actor/entropy"] > 0.1 for line in lines[-2:])
    answers = [json.loads(x) for x in (run_dir / "rollouts" / "step_1.jsonl").read_text().splitlines()]
    assert all(len(a["answer"]) > 10 for a in answers)
    done = rlx("merge", str(run_dir), "--out", str(tmp_path / "merged"), "--dtype", "bf16")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "merged" / "model.safetensors").stat().st_size > 250_000_000
