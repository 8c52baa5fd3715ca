"""The real command with its checkpoints on S3: trained, stopped, resumed, looked at, merged and scored."""

import json
import shutil

import pytest
from tests.e2e.conftest import records, run_dir_of
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

    (taken := tmp_path / "elsewhere").mkdir()
    refused = rlx(*words, cwd=taken)
    assert refused.returncode == 1 and "holds checkpoints of another run: global_step_2" in refused.stderr
    assert "Traceback" not in refused.stderr

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
    merged = [rlx("merge", source, "--out", out) for source, out in ((str(run), "a"), (told[0]["path"], "b"))]
    merged.append(rlx("merge", "runs/smoke/unbroken", "--out", "c"))
    assert [done.returncode for done in merged] == [0, 0, 0], merged
    assert len({(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}) == 1
