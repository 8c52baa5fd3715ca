"""Whole runs of algorithms on the embedded task: held-out accuracy before and after, by algorithm and seed.

    uv run python tests/benchmarks/algorithm_runs.py grpo rloo --seeds 1 2 3 --curve group.png
    uv run python tests/benchmarks/algorithm_runs.py grpo smoke-ppo actor.optim.lr=2e-4 --seeds 1

A name is an algorithm's or a profile's; words with `=` are keys for all runs. Prints one JSON line a run, with the
command that does the same by itself; `seconds` are those of the steps. Only the first run of a seed warms the builtin
model up, the others start from the folder that it left: the same model, 20 seconds sooner. What a run has learned that
reads answers (DPO on pairs, say) is asked by `rlx eval`; a reward model's accuracy is its share of pairs in order.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from verl_core.config.catalogue import entry
from verl_core.config.compose import profile_names, resolve
from verl_core.config.effective import learner
from verl_core.config.model_roles import taught_phases
from verl_core.tracking.curves import load_run
from verl_core.tracking.summary import VAL_PREFIX, validation_score

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "rlx"]
ENVIRON = os.environ | {"PYTHONPATH": f"{ROOT / 'cli'}{os.pathsep}{ROOT}"}
KEYS = {"gdpo": ["algorithm.gdpo_reward_keys=[score]"]}
"""What an algorithm has no default for."""


def words_of(name: str) -> list[str]:
    """The profile of that name, `smoke-NAME`, or the algorithm on the smallest profile that has what it needs."""
    for profile in (name, f"smoke-{name.replace('_', '-')}"):
        if profile in profile_names():
            return [profile]
    profile = "smoke-ppo" if "critic" in entry("algorithm", name).needs else "smoke"
    return [profile, f"algorithm.name={name}", *KEYS.get(name, [])]


class Runs:
    """Runs in one folder, with the warmed-up models that they share."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._models: dict[str, Path] = {}

    def one(self, name: str, seed: int, more: list[str]) -> tuple[dict[str, object], Path]:
        """The row of a run, and its folder. Ends the program with the run's own message where it fails."""
        profile, *keys = [*words_of(name), *more, f"trainer.seed={seed}"]
        config = resolve(profile, keys).config
        start = f"{config.model.path} {config.warmup} {seed}"
        shared = start in self._models and not taught_phases(config)  # a phase that makes a teacher is run
        warm = [f"model.path={self._models[start]}"] if shared else []
        run_dir = self.folder / "runs" / config.trainer.project_name / f"{name}-{seed}"
        summary = self._rlx("train", profile, *keys, *warm, f"trainer.experiment_name={run_dir.name}")
        if (run_dir / "warmup").exists():
            self._models[start] = run_dir / "warmup"
        if val := summary["val"]:
            before, after = val["first"], val["last"]
        elif learner(config) == "reward_model":  # it answers nothing
            curve = load_run(run_dir).held_out("val/acc/").values
            before, after = curve[0], curve[-1]
        else:
            sources = [str(self._models[start]), profile, *keys], [str(run_dir)]
            before, after = (validation_score(self._rlx("eval", *words)["metrics"]) for words in sources)
        row = {"algorithm": name, "seed": seed, "before": before, "accuracy": after, "steps": summary["steps"]}
        row |= {"seconds": round(summary["seconds"]["steps"], 1), "command": " ".join(["rlx train", profile, *keys])}
        return row, run_dir

    def _rlx(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [*COMMAND, *words, "--json"], cwd=self.folder, env=ENVIRON, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"rlx {' '.join(words)}: {done.stderr}")
        return json.loads(done.stdout)


TRAINING = (
    ("reward of sampled answers", "filter_groups/score/mean"),
    ("reward of sampled answers", "critic/score/mean"),
    ("loss, nats", "reward_model/loss"),
    ("loss, nats", "actor/loss"),
)
HELD_OUT = (
    ("held-out accuracy, greedy", VAL_PREFIX),
    ("held-out pairs in the right order", "val/acc/"),
    ("held-out loss, nats", "val/loss/"),
)
"""What is drawn: of each the first that was recorded."""


def draw(runs: dict[str, list[Path]], out: Path) -> None:
    """What was learned from (reward of all sampled answers, or the loss) and how held-out rows go, by step: mean over
    the seeds, shaded from the lowest to the highest."""
    from matplotlib.figure import Figure

    from verl_core.tracking.plot import COLOURS, GRID

    figure = Figure(figsize=(9, 3.6), dpi=90, layout="constrained")
    training, held_out = figure.subplots(1, 2)
    titles = {}
    for index, (name, folders) in enumerate(runs.items()):
        loaded = [load_run(folder) for folder in folders]
        colour, style = COLOURS[index % len(COLOURS)], ("-", "--")[index // len(COLOURS) % 2]
        first = loaded[0]
        titles[training], metric = next((t, m) for t, m in TRAINING if first.curve(m))
        titles[held_out], prefix = next((t, p) for t, p in HELD_OUT if first.held_out(p))
        for axes, curves in (
            (training, [run.curve(metric) for run in loaded]),
            (held_out, [run.held_out(prefix) for run in loaded]),
        ):
            at_step = list(zip(*(curve.values for curve in curves), strict=True))
            mean = [sum(values) / len(values) for values in at_step]
            axes.plot(curves[0].steps, mean, style, color=colour, linewidth=1.4, label=name)
            low, high = [min(values) for values in at_step], [max(values) for values in at_step]
            axes.fill_between(curves[0].steps, low, high, color=colour, alpha=0.12, linewidth=0)
    for axes, title in titles.items():
        axes.set(title=title, xlabel="step", ylim=(0, None if "loss" in title else 1.02))
        axes.grid(color=GRID)
        axes.spines[["top", "right"]].set_visible(False)
    held_out.legend(frameon=False, fontsize=8, loc="best")
    figure.savefig(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="+", metavar="NAME | KEY=VALUE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--curve", type=Path, help="picture to draw of all runs")
    args = parser.parse_intermixed_args()
    names, keys = [w for w in args.words if "=" not in w], [w for w in args.words if "=" in w]
    if not os.environ.get("RLX_PYTHON"):
        subprocess.run([*COMMAND, "env", "sync", "smoke"], env=ENVIRON, check=True, stdout=subprocess.DEVNULL)
    folders: dict[str, list[Path]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        for name in names:
            for seed in args.seeds:
                row, run_dir = runs.one(name, seed, keys)
                folders[name].append(run_dir)
                print(json.dumps(row), flush=True)
        if args.curve:
            draw(folders, args.curve)


if __name__ == "__main__":
    main()
