"""One line a step, for the person who watches."""

import os
from collections.abc import Mapping
from statistics import fmean
from typing import TextIO

from rich.console import Console
from rich.text import Text

from verl_core.tracking.summary import VAL_PREFIX

# (metric, word on the line, format), in the order of the line; absent metrics are left out.
REWARD = ("critic/score/mean", "reward", "{:.3f}")
LOSSES = ("reward_model/loss", "actor/loss")  # where nothing is scored
HELD_OUT = {VAL_PREFIX: "val", "val/loss/": "val loss", "val/acc/": "val acc"}  # the latter two likewise
AFTER_VALIDATION = (
    ("response_length/mean", "length", "{:.1f}"),
    ("actor/ppo_kl", "kl", "{:z.4f}"),
    ("actor/entropy", "entropy", "{:.3f}"),
    ("actor/grad_norm", "grad", "{:.2g}"),
    ("perf/throughput", "tok/s", "{:,.0f}"),
)


class _Console(Console):
    """rich ends the whole process when a pipe's reader leaves (`rlx train smoke | head`); here that is an error, which
    costs this tracker and not the run."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("the reader of the step lines has left")


class ConsoleTracker:
    """`step 12/60  reward 0.812  val 0.960  length 16.2  kl 0.0012  entropy 0.210  grad 0.42  tok/s 21,300  0:14 left`

    `total_steps` None leaves out the total and the time left. Colour only on a terminal and without NO_COLOR.
    """

    name = "console"
    essential = False

    def __init__(self, stream: TextIO, total_steps: int | None):
        self._console = _Console(file=stream, highlight=False, soft_wrap=True, no_color="NO_COLOR" in os.environ)
        self._total = total_steps
        self._seconds: list[float] = []  # of the steps seen

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        width = len(str(self._total or step))
        line = Text(f"step {step:>{width}}" + (f"/{self._total}" if self._total else ""), style="bold")
        if REWARD[0] in metrics:
            self._field(line, REWARD[1], REWARD[2].format(metrics[REWARD[0]]), "green")
        elif loss := [metrics[name] for name in LOSSES if name in metrics]:
            self._field(line, "loss", f"{loss[0]:.4f}")
        scored = any(name.startswith(VAL_PREFIX) for name in metrics)
        for prefix, word in HELD_OUT.items():
            scores = {name.removeprefix(prefix): v for name, v in metrics.items() if name.startswith(prefix)}
            for source, value in sorted(scores.items()) if prefix == VAL_PREFIX or not scored else ():
                self._field(line, word if len(scores) == 1 else f"{word}[{source}]", f"{value:.3f}", "cyan")
        for name, word, form in AFTER_VALIDATION:
            if name in metrics:
                self._field(line, word, form.format(metrics[name]))
        if self._total and "timing_s/step" in metrics:
            self._seconds.append(metrics["timing_s/step"])
            left = fmean(self._seconds) * (self._total - step)
            line.append(f"  {clock(left)} left" if left else "", style="dim")
        self._console.print(line)

    @staticmethod
    def _field(line: Text, word: str, value: str, style: str = "") -> None:
        line.append(f"  {word} ", style="dim")
        line.append(value, style=style)

    def finish(self, exit_code: int) -> None:
        """Nothing to close: the stream is the process's."""


def clock(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss from an hour on."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
