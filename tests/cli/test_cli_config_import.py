"""`rlx config import` as a person runs it: the file, the report, and where it refuses."""

import json
import subprocess
import sys
from pathlib import Path

from verl_core.config import yaml_text

SCRIPTS = Path(__file__).parents[1] / "config" / "verl_scripts"


def rlx(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlx", "config", "import", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def test_the_file_is_written_once_and_replaced_with_force(tmp_path):
    script = str(SCRIPTS / "grpo_7b_vllm.sh")
    first = rlx(tmp_path, script)
    assert first.returncode == 0, first.stderr
    assert "trainer.nnodes=1 -> cluster.nnodes" in first.stdout
    assert "$(date +%Y%m%d) is a command, and the script is not run" in first.stdout
    assert "rlx.yaml is written" in first.stderr
    written = (tmp_path / "rlx.yaml").read_text()
    assert isinstance(yaml_text.read(written), dict)
    again = rlx(tmp_path, script)
    assert (again.returncode, again.stdout) == (1, "")
    assert "error: rlx.yaml exists" in again.stderr and "--force" in again.stderr
    beyond = rlx(tmp_path, script, "--out", "x" * 300)
    assert beyond.returncode == 1 and "too long for a path" in beyond.stderr
    assert rlx(tmp_path, script, "--force", "--set", "MODEL_PATH=/m").returncode == 0
    assert "path: /m" in (tmp_path / "rlx.yaml").read_text()


def test_a_dry_run_writes_nothing_and_json_is_only_json(tmp_path):
    dry = rlx(tmp_path, str(SCRIPTS / "ray_job.sh"), "--dry-run")
    assert dry.returncode == 0 and "engine: sglang  # actor_rollout_ref.rollout.name" in dry.stdout
    done = rlx(tmp_path, str(SCRIPTS / "ray_job.sh"), "--dry-run", "--json")
    report = json.loads(done.stdout)
    assert report["out"] is None and yaml_text.read(report["text"])["rollout"]["n"] == 4
    assert {item["key"] for item in report["defaults"]} >= {"rollout.tensor_model_parallel_size", "trainer.logger"}
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_is_one_line(tmp_path):
    missing = rlx(tmp_path, "nope.sh")
    assert missing.returncode == 1 and "error: cannot read nope.sh" in missing.stderr
    (tmp_path / "x.sh").write_text("echo hello\n")
    assert "error: x.sh starts no trainer of veRL" in rlx(tmp_path, "x.sh").stderr
    assert rlx(tmp_path, "x.sh", "--set", "A").returncode == 2
    assert rlx(tmp_path, str(SCRIPTS / "sft.sh"), "--out", "no/such/rlx.yaml").returncode == 1
