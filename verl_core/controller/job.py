"""What `rlx train` becomes: `python -m verl_core.controller.job RUN_DIR [--resume] [--json] [-v]`.

Reads RUN_DIR/config.yaml, warms up a builtin model, builds the run, trains. One Ctrl-C (or SIGTERM) ends the run after
the step in progress, with a checkpoint; a second one kills.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shlex
import shutil
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as Bar

from verl_core.checkpoint.place import claimed
from verl_core.config import garbage
from verl_core.config.effective import effective, learner, uses_rollout
from verl_core.config.errors import EnvError, RlxError, RunError, UserError
from verl_core.config.model_roles import REWARD_MODEL_PATH, frozen_paths
from verl_core.config.process import run_job
from verl_core.config.prompt_files import VAL_FILES, prompt_files
from verl_core.config.registry import ALGORITHM_FILE
from verl_core.config.schema import RlxConfig
from verl_core.config.user_code import import_file
from verl_core.config.write import load
from verl_core.controller.out_of_memory import OutOfMemory, changes_that_help
from verl_core.rewards.compose import check_named_rules
from verl_core.tracking.records import RunRecords
from verl_core.tracking.run_lock import hold
from verl_core.tracking.run_log import run_logging

log = logging.getLogger(__name__)
talk = Console(stderr=True, highlight=False, soft_wrap=True)


class Stop:
    """Signals as a request to stop: the first one asks, the second one kills."""

    def __init__(self) -> None:
        self.signal: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        if self.signal is not None:
            os.killpg(os.getpgid(0), signal.SIGKILL) if os.getpgid(0) == os.getpid() else os._exit(128 + number)
        self.signal = number
        talk.print("stopping after this step; once more kills at once")

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal else 0

    @property
    def reason(self) -> str:
        if self.signal is None:
            return "finished"
        return "interrupted" if self.signal == signal.SIGINT else "terminated"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m verl_core.controller.job")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args(argv)
    stop = Stop()
    hold(args.run_dir)
    config = effective(load(args.run_dir / "config.yaml"))
    with run_logging(args.run_dir, args.verbose):
        try:
            return _work(config, args, stop)
        except RlxError as error:
            if isinstance(error, OutOfMemory):
                error.hint = changes_that_help(load(args.run_dir / "config.yaml"), error.phase) or error.hint
            log.info("failed: %s (hint: %s)", error.message, error.hint)
            if isinstance(error, UserError | EnvError):
                _forget(args.run_dir, args.resume)
            raise
        except BrokenPipeError:
            raise  # whoever read our output has left: run_job ends with 141
        except OSError as error:
            log.info("failed", exc_info=True)
            raise RunError(f"{type(error).__name__}: {error}", f"see {args.run_dir / 'train.log'}") from error
        except Exception:
            log.info("failed", exc_info=True)
            raise


def _work(config: RlxConfig, args: argparse.Namespace, stop: Stop) -> int:
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    records = RunRecords(args.run_dir)
    if config.algorithm.module:  # what it lacks is found before minutes are spent on a model
        import_file(Path(config.algorithm.module).expanduser().resolve(), ALGORITHM_FILE)
    _find_prompts(config)
    check_named_rules(config.reward)
    find_frozen(config)
    with claimed(config.trainer, args.run_dir, args.resume):
        model_folder = _model_folder(config, args.run_dir, stop)
        if model_folder is None:
            return stop.exit_code
        return asyncio.run(_train(config, args, records, model_folder, stop))


def _find_prompts(config: RlxConfig) -> None:
    """Raises UserError when a prompt file or the file of a curriculum is not there, before a model is downloaded or
    made for it."""
    from verl_core.data.builtin import is_builtin
    from verl_core.data.curriculum import curriculum_class
    from verl_core.data.files import resolve

    for key, files in prompt_files(config.data).items():
        if outside := [name for name in files if not is_builtin(name)]:
            resolve(outside, "val" if key == VAL_FILES else "train", key)
    if config.data.curriculum.path:
        curriculum_class(config.data.curriculum)


def find_frozen(config: RlxConfig) -> None:
    """The models of teachers and reward model, before a builtin student is warmed up for them. Raises, with the key,
    UserError when a folder is not there or holds no reward model, EnvError when one cannot be fetched."""
    from verl_core.data.builtin import is_builtin
    from verl_core.models.pretrained import resolve
    from verl_core.rewards.models.head import require_head

    for key, path in frozen_paths(config).items():
        try:
            if not is_builtin(path):
                folder = resolve(path)
                if key == REWARD_MODEL_PATH:
                    require_head(folder)
        except (UserError, EnvError) as error:
            raise type(error)(f"{key}: {error.message}", error.hint) from error


def _model_folder(config: RlxConfig, run_dir: Path, stop: Stop) -> str | None:
    """Where the model to train lies; a builtin one is made and warmed up first. None when stopped on the way."""
    from verl_core.data.builtin import is_builtin
    from verl_core.models.pretrained import resolve

    if not is_builtin(config.model.path):
        return str(resolve(config.model.path))
    from verl_core.controller.warmup import warm_up

    if not config.warmup.phases or (run_dir / "warmup" / "config.json").exists():
        folder = warm_up(config, run_dir, lambda *_: None, stop)
        return str(folder) if folder else None
    talk.print(f"phase 1 of 2: warm-up (supervised), {sum(phase.steps for phase in config.warmup.phases)} steps")
    with Bar(console=talk, transient=True, disable=not talk.is_terminal) as bar:
        tasks = {p.name: bar.add_task(p.name, total=p.steps) for p in config.warmup.phases}
        folder = warm_up(config, run_dir, lambda name, step, _: bar.update(tasks[name], completed=step), stop)
    if folder is None:
        talk.print(f"{stop.reason}: {run_dir}; --resume starts the warm-up again")
        return None
    talk.print(f"phase 2 of 2: {'reinforcement learning' if uses_rollout(config) else 'training'}")
    return str(folder)


async def _train(
    config: RlxConfig, args: argparse.Namespace, records: RunRecords, model_folder: str, stop: Stop
) -> int:
    from verl_core.controller.run import Run
    from verl_core.controller.trainer import train

    garbage.look_as_usual()
    async with AsyncExitStack() as stack:
        run = Run(config, records, model_folder, args.resume, args.json, stop)
        code, reason = 70, "failed: internal error"
        try:
            await run.start(stack, talk.print)
            await train(run)
            code, reason = stop.exit_code, stop.reason
        except RlxError as error:
            code, reason = error.exit_code, f"failed: {error.message}"
            raise
        finally:
            summary = run.finish(code, reason)
    if args.json:
        print(json.dumps(summary), flush=True)
    else:
        talk.print(f"{reason}: {args.run_dir}")
        if code == 0:
            role = "" if learner(config) == "actor" else f" --role {learner(config)}"
            place = shlex.quote(str(args.run_dir))
            talk.print(f"next: rlx merge {place} --out DIR{role}, or rlx runs plot {place}")
    return code


def _forget(run_dir: Path, resume: bool) -> None:
    """A run that was refused before its first step leaves no run directory behind that would block its name."""
    if not resume and not (run_dir / "checkpoints").exists() and not (run_dir / "metrics.jsonl").exists():
        shutil.rmtree(run_dir, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run_job(main))
