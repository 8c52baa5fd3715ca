"""The rendered Slurm script, really run: the machines, Ray and Slurm's programs are fakes, the script is not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlx.launchers import slurm
from rlx.launchers.job import Job
from tests.conftest import ROOT, command_variables
from verl_core.config.compose import resolve

ODD = """a b'c"d$HOME"""

# `uv run --project ROOT rlx ...`: the real command
UV = f"""#!/bin/bash
[ "$3" = "{ROOT}" ] || exit 9
shift 4
exec "{sys.executable}" -m rlx "$@"
"""
# the same, where neither training nor Ray is wanted: `env run WORDS -- COMMAND` runs COMMAND, `train` keeps its words
STAND_IN = """#!/bin/bash
shift 4
if [ "$1" = train ]; then
  printf '%s\\n' "$@" > "$RECORD/train"
  trap 'echo saved > "$RECORD/saved"; exit 143' TERM
  for _ in $(seq "${TRAIN_TENTHS:-5}"); do sleep 0.1; done
  exit 0
fi
printf '%s\\n' "$@" >> "$RECORD/env"
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
RAY = f"""#!/bin/bash
printf '%s ' "$SLURM_NODEID" "$@" >> "$RECORD/ray"
echo >> "$RECORD/ray"
trap 'echo "$SLURM_NODEID" >> "$RECORD/ended"; kill %1; exit 1' TERM
port=0
for word; do case "$word" in --port=*) port="${{word#--port=}}" ;; esac; done
if [ "$port" != 0 ]; then
  "{sys.executable}" -m http.server "$port" > "$RECORD/http" 2>&1 &
else
  sleep "${{WORKER_LIVES_S:-60}}" &
fi
touch "$RECORD/up-$SLURM_NODEID"
wait $!
exit 3
"""
# as srun --kill-on-bad-exit: a task a machine; when one fails, or srun is told to end, all end
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
pids=()
for node in 0 1; do SLURM_NODEID=$node "$@" & pids+=($!); done
trap 'kill "${pids[@]}" 2>/dev/null; wait; exit 1' TERM
while true; do
  wait -n || { kill "${pids[@]}" 2>/dev/null; wait; exit 1; }
  [ -n "$(jobs -pr)" ] || exit 0
done
"""
# the module `ray` of the script's two lines of Python
RAY_MODULE = """
import os, pathlib, types
util = types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
def init(**_): pass
def nodes(): return [{"Alive": True} for _ in pathlib.Path(os.environ["RECORD"]).glob("up-*")]
"""


class Cluster:
    """A folder of fake programs, and the project folder that the script runs in."""

    def __init__(self, folder: Path, **programs: str):
        self.programs, self.project, self.record = (folder / name for name in ("programs", "a project", "record"))
        for made in (self.programs, self.project, self.record):
            made.mkdir()
        self.put("scontrol", '#!/bin/bash\necho "$@" > "$RECORD/scontrol"\n')
        for name, text in programs.items():
            self.put(name, text)

    def put(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def start(self, script: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        path = self.project / "job.sh"
        path.write_text(script)
        wanted = command_variables(
            {
                "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
                "RECORD": str(self.record),
                "SLURM_JOB_ID": str(os.getpid()),
                "SLURM_CPUS_PER_TASK": "8",
                "SLURM_SUBMIT_DIR": str(self.project),
                **variables,
            }
        )
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(["bash", path, *words], env=wanted, cwd="/", text=True, **streams)

    def said(self, name: str) -> list[str]:
        path = self.record / name
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, name: str, limit_s: float = 60) -> None:
        end = time.monotonic() + limit_s
        while not (self.record / name).exists():
            assert time.monotonic() < end, f"no {name}"
            time.sleep(0.05)


def script(*settings: str, folder: Path | None = None, name: str | None = None, profile: str = "smoke") -> str:
    resolved = resolve(profile, settings)
    return slurm.render(Job(resolved.config, resolved.profile, (profile, *settings), folder=folder, name=name))


def test_words_reach_the_real_command_whole(tmp_path):
    cluster = Cluster(tmp_path, uv=UV)
    text = script(f"trainer.experiment_name={ODD}", "trainer.default_local_dir=x y", folder=cluster.project, name=ODD)
    job = cluster.start(text, "rollout.n=4", "--dry-run")
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    assert f"x y/smoke/{ODD}" in out
    assert "16 prompts x 4 answers" in out
    assert [path.name for path in cluster.project.iterdir()] == ["job.sh"]


def test_a_job_without_a_name_is_called_after_its_number(tmp_path):
    job = Cluster(tmp_path, uv=UV).start(script(), "--dry-run", SLURM_JOB_ID="77")
    assert "runs/smoke/slurm-77" in job.communicate(timeout=120)[0]


def test_a_failure_is_the_jobs_failure(tmp_path):
    job = Cluster(tmp_path, uv=UV).start(script(), "actor.optim.lrr=1")
    _, err = job.communicate(timeout=120)
    assert job.returncode == 1 and "actor.optim.lrr" in err


@pytest.mark.parametrize(
    ("left_s", "restarts", "requeued"), [(100, 0, True), (100, 10, False), (5000, 0, False), (None, 0, False)]
)
def test_only_the_time_limit_queues_a_job_again(tmp_path, left_s, restarts, requeued):
    cluster = Cluster(tmp_path, uv=STAND_IN)
    end = {} if left_s is None else {"SLURM_JOB_END_TIME": str(int(time.time()) + left_s)}
    job = cluster.start(script(), SLURM_RESTART_COUNT=str(restarts), TRAIN_TENTHS="600", **end)
    cluster.wait_for("train")
    time.sleep(0.2)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode == 143
    assert cluster.said("saved") == ["saved"]
    assert bool(cluster.said("scontrol")) is requeued


TWO = ["cluster.nnodes=2", "cluster.n_gpus_per_node=2"]


@pytest.fixture
def two_machines(tmp_path) -> Cluster:
    cluster = Cluster(tmp_path, uv=STAND_IN, ray=RAY, srun=SRUN)
    (cluster.programs / "ray.py").write_text(RAY_MODULE)
    cluster.put("python", f'#!/bin/bash\nPYTHONPATH="{cluster.programs}" exec "{sys.executable}" "$@"\n')
    return cluster


def test_two_machines_become_one_cluster_that_ends_with_the_run(two_machines):
    words = [*TWO, f"trainer.experiment_name={ODD}", "launch.slurm.setup=[export SET_UP=1]"]
    job = two_machines.start(script(*words, name=ODD), "rollout.n=4")
    _, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    head, worker = sorted(two_machines.said("ray"))
    assert head.startswith("0 start --num-cpus=8 --block --head --node-ip-address=127.0.0.1")
    port = next(word for word in head.split() if word.startswith("--port=")).removeprefix("--port=")
    assert worker.split() == ["1", "start", "--num-cpus=8", "--block", f"--address=127.0.0.1:{port}"]
    name = f"trainer.experiment_name={ODD}"
    expected = ["train", "smoke", *words, name, "rollout.n=4", f"cluster.ray_address=127.0.0.1:{port}", "--resume"]
    assert two_machines.said("train") == expected
    assert two_machines.said("env")[:8] == ["env", "run", "smoke", *words, name]  # extras follow the run's own words
    assert sorted(two_machines.said("ended")) == ["0", "1"]


def test_a_machine_that_dies_ends_the_job(two_machines):
    job = two_machines.start(script(*TWO), WORKER_LIVES_S="3", TRAIN_TENTHS="600")
    _, err = job.communicate(timeout=120)
    assert job.returncode == 1
    assert "a machine of the job has gone" in err and "Ray's logs are kept" in err
    assert two_machines.said("saved") == ["saved"]  # the run was told to end, not left behind


def test_a_cluster_that_does_not_come_up_ends_the_job(two_machines):
    two_machines.put("ray", "#!/bin/bash\nexit 1\n")
    job = two_machines.start(script(*TWO))
    _, err = job.communicate(timeout=120)
    assert job.returncode == 1 and "Ray did not come up on 2 machines" in err
    assert two_machines.said("train") == []


def test_sigterm_saves_and_ends_every_machine(two_machines):
    end = str(int(time.time()) + 100)
    job = two_machines.start(script(*TWO), TRAIN_TENTHS="600", SLURM_JOB_END_TIME=end)
    two_machines.wait_for("train")
    time.sleep(0.2)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode == 143
    assert two_machines.said("saved") == ["saved"]
    assert sorted(two_machines.said("ended")) == ["0", "1"]
    assert two_machines.said("scontrol") == [f"requeue {os.getpid()}"]


@pytest.mark.slow
def test_a_requeued_job_goes_on_from_its_checkpoint(tmp_path):
    cluster = Cluster(tmp_path, uv=UV)
    text = script(
        "trainer.total_training_steps=8", "warmup.phases=[]", "data.val_max_samples=8", folder=cluster.project
    )
    end = str(int(time.time()) + 100)
    job = cluster.start(text, SLURM_JOB_ID="5", SLURM_JOB_END_TIME=end)
    metrics = cluster.project / "runs/smoke/slurm-5/metrics.jsonl"
    limit = time.monotonic() + 300
    while not metrics.exists() or metrics.read_text().count("\n") < 2:
        assert time.monotonic() < limit and job.poll() is None
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=120)
    assert job.returncode == 143, err
    assert cluster.said("scontrol") == ["requeue 5"]
    saved = (metrics.parent / "checkpoints/latest").read_text()
    again = cluster.start(text, SLURM_JOB_ID="5", SLURM_RESTART_COUNT="1")
    _, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert saved.strip() != "global_step_8" == (metrics.parent / "checkpoints/latest").read_text().strip()
