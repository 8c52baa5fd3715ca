"""Data sets that `rlx prepare` makes, as the catalogue has them: rows, licence, scorer and options of their own. How
each is read or generated is in verl_core/data/prepare, one file a data set."""

from collections.abc import Mapping
from dataclasses import dataclass

from verl_core.config.generated_data import CountdownOptions, KnightsAndKnavesOptions
from verl_core.config.registry import register

_PREPARE = "verl_core.data.prepare"


@dataclass(frozen=True)
class DatasetFacts:
    """What `rlx prepare --list` says of a data set; the `options` of its entry in the catalogue."""

    rows: Mapping[str, int]
    """Rows by split, as published or as generated without options; splits that it lacks are absent."""
    licence: str
    scorer: str = ""
    """Short name of the rule that scores its answers; empty where nothing is scored."""
    hub: str = ""
    """Its name on the Hugging Face hub; empty for data that is made here or is the user's own."""
    options: type | None = None
    """Dataclass of what it alone takes: a field `count` is the option `--count` (see `dataset_options`)."""
    tasks: bool = False
    """True for a family of which `NAME:TASK` is one."""
    extras: tuple[str, ...] = ()
    """Extras that the environment must have to make it, besides those of every job."""


def register_datasets() -> None:
    """Adds every built-in data set to the catalogue."""
    _dataset(
        "gsm8k",
        "gsm8k",
        "Grade-school word problems with a whole number for an answer (arXiv 2110.14168).",
        DatasetFacts({"train": 7473, "test": 1319}, "MIT", "gsm8k", hub="openai/gsm8k"),
    )
    _dataset(
        "show-your-work",
        "show_your_work",
        "Two-step word problems of the profile smoke, made here.",
        DatasetFacts({"train": 1699, "test": 200}, "Apache-2.0", "rlx/show-your-work"),
    )
    _dataset(
        "countdown",
        "countdown",
        "Reach a target with some numbers, each used once; made here, solvable by construction.",
        DatasetFacts({"train": 10_000, "test": 500}, "Apache-2.0", "countdown", options=CountdownOptions),
    )
    _dataset(
        "knights-and-knaves",
        "knights_and_knaves",
        "Who tells the truth, from what each says; made here, each with exactly one solution.",
        DatasetFacts(
            {"train": 10_000, "test": 500}, "Apache-2.0", "knights_and_knaves", options=KnightsAndKnavesOptions
        ),
    )


def _dataset(name: str, module: str, doc: str, facts: DatasetFacts) -> None:
    register("dataset", name, where=f"{_PREPARE}.{module}:prepare", doc=doc, options=facts)
