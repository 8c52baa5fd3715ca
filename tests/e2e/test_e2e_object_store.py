"""The real command with its checkpoints on S3: trained, stopped, resumed, looked at and merged."""

import json
import shutil

import pytest

from tests.e2e.conftest import records, run_dir_of
from verl_core.checkpoint.merge import merge, plan_merge
from verl_core.checkpoint.objects import ObjectPath


@pytest.mark.slow
def test_a_run_with_its_checkpoints_on_s3(s3, rlx, small, train_here, tmp_path):
    unbroken = train_here([*small(steps=4), "trainer.experiment_name=unbroken"])
    url = f"{s3.url}/runs"
    words = small(steps=2, trainer__checkpoint_url=url, trainer__max_ckpt_to_keep=1)
    done = rlx(*words)
    assert done.returncode == 0, done.stderr
    run = run_dir_of(tmp_path)
    assert not (run / "checkpoints").exists()
    assert (ObjectPath(f"{url}/smoke/run/latest")).read_text() == "global_step_2\n"

    shutil.rmtree(run)  # the machine is lost
    resumed = rlx(*words, "trainer.total_training_steps=4", "--resume")
    assert resumed.returncode == 0 and "resumed from global_step_2" in resumed.stderr, resumed.stderr
    assert records(run) == [line for line in unbroken if line["step"] > 2]
    assert {name.partition("/")[0] for name in ObjectPath(f"{url}/smoke/run").sizes()} == {
        "global_step_4",
        "latest",
        "writer.json",
    }

    told = json.loads(rlx("runs", "verify", str(run), "--checksums", "--json").stdout)
    assert [(each["step"], each["whole"], each["path"]) for each in told] == [
        (4, True, f"{url}/smoke/run/global_step_4")
    ]
    done = rlx("merge", str(run), "--out", "by-run", "--verify", "none")
    assert done.returncode == 0, done.stderr
    merge(plan_merge(told[0]["path"], tmp_path / "by-url"), how="none")
    merge(plan_merge(run_dir_of(tmp_path, "unbroken"), tmp_path / "local"), how="none")
    merged = [tmp_path / name / "model.safetensors" for name in ("by-run", "by-url", "local")]
    assert len({path.read_bytes() for path in merged}) == 1
