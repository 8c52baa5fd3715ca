"""One file a command. `COMMANDS` is all that `rlx --help` reads: a command's module is imported only when it runs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A command: where its typer app lives, the help section that lists it, and its one line there."""

    module: str
    section: str
    summary: str


COMMANDS = {
    "init": Entry("rlx.commands.init", "Start", "Write a project folder: configuration, reward, launch scripts"),
    "config": Entry(
        "rlx.commands.config",
        "Start",
        "Look at a configuration, check it, compare two, look keys up, read veRL's scripts",
    ),
    "profile": Entry("rlx.commands.profile", "Start", "List the profiles, show what one sets, copy or compare them"),
    "algo": Entry("rlx.commands.algo", "Start", "List the algorithms and their parts, show formula, needs and keys"),
    "rewards": Entry("rlx.commands.rewards", "Start", "List the scorers of answers, show what one takes and serves"),
    "prepare": Entry("rlx.commands.prepare", "Start", "Fetch or make a data set and write it as Parquet"),
    "data": Entry("rlx.commands.data", "Start", "Show rows of data files, count them, find what is wrong"),
    "plan": Entry("rlx.commands.plan", "Train", "Estimate memory, traffic and time of a run, and say whether it fits"),
    "train": Entry("rlx.commands.train", "Train", "Train a model by reinforcement learning"),
    "runs": Entry("rlx.commands.runs", "Train", "List runs, show one, check its checkpoints, draw its curves"),
    "eval": Entry("rlx.commands.eval", "Use the result", "Score a model or a run on validation prompts"),
    "merge": Entry("rlx.commands.merge", "Use the result", "Turn a checkpoint into a Hugging Face model folder"),
    "env": Entry("rlx.commands.env", "Machine", "Make, list and use the software environments of jobs"),
    "doctor": Entry("rlx.commands.doctor", "Machine", "Check this machine and say how to mend what is wrong"),
}
