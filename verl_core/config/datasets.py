"""Data sets that `rlx prepare` makes, as the catalogue has them: rows, licence, scorer and options of their own. How
each is read or generated is in verl_core/data/prepare, one file a data set."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from verl_core.config.custom_data import CustomOptions
from verl_core.config.generated_data import CountdownOptions, KnightsAndKnavesOptions, ReasoningGymOptions
from verl_core.config.reasoning_gym_tasks import TASKS
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
    tasks: tuple[str, ...] = ()
    """Of a family: the TASKs of its data sets `NAME:TASK`."""
    extras: tuple[str, ...] = ()
    """Extras that the environment must have to make it, besides those of every job."""


@dataclass(frozen=True)
class HelpfulHarmlessOptions:
    """Options of hh-rlhf."""

    form: Literal["pairs", "sft", "rl"] = "pairs"
    """Pairs of answers; the better answers as demonstrations; prompts alone, for a reward model to score."""

    @property
    def folder(self) -> str:
        """Each form has a folder of its own below the data set's."""
        return self.form


def register_datasets() -> None:
    """Adds every built-in data set to the catalogue."""
    _dataset(
        "gsm8k",
        "gsm8k",
        "Grade-school word problems with a whole number for an answer (arXiv 2110.14168).",
        DatasetFacts({"train": 7473, "test": 1319}, "MIT", "gsm8k", hub="openai/gsm8k"),
    )
    _dataset(
        "math",
        "math",
        "Competition problems with LaTeX answers (arXiv 2103.03874).",
        DatasetFacts({"train": 7500, "test": 5000}, "MIT", "math", hub="DigitalLearningGmbH/MATH-lighteval"),
    )
    _dataset(
        "math-500",
        "math",
        "The 500 test problems of MATH that papers report (arXiv 2305.20050).",
        DatasetFacts({"test": 500}, "MIT", "math", hub="HuggingFaceH4/MATH-500"),
    )
    _dataset(
        "dapo-math-17k",
        "dapo",
        "Competition problems with whole-number answers (arXiv 2503.14476); about 17,400 once repeats are left out.",
        DatasetFacts({"train": 17_400}, "Apache-2.0", "dapo_math", hub="BytedTsinghua-SIA/DAPO-Math-17k"),
    )
    _dataset(
        "aime-2024",
        "dapo",
        "The 30 problems of AIME 2024, to validate on.",
        DatasetFacts({"test": 30}, "Apache-2.0", "dapo_math", hub="BytedTsinghua-SIA/AIME-2024"),
    )
    _dataset(
        "hellaswag",
        "hellaswag",
        "Which of four endings goes on with a scene (arXiv 1905.07830).",
        DatasetFacts({"train": 39_905, "test": 10_042}, "MIT", "multiple_choice", hub="Rowan/hellaswag"),
    )
    _dataset(
        "search-r1",
        "search_r1",
        "Open questions with short answers (arXiv 2503.09516), asked without tools.",
        DatasetFacts(
            {"train": 169_615, "test": 51_713}, "CC BY-SA (NQ, HotpotQA)", "qa", hub="PeterJinGo/nq_hotpotqa_train"
        ),
    )
    _dataset(
        "mbpp",
        "mbpp",
        "Short Python programs that have to pass three asserts (arXiv 2108.07732).",
        DatasetFacts({"train": 374, "test": 500}, "CC BY 4.0", "code", hub="google-research-datasets/mbpp"),
    )
    _dataset(
        "humaneval",
        "humaneval",
        "Python functions to complete (arXiv 2107.03374).",
        DatasetFacts({"test": 164}, "MIT", "code", hub="openai/openai_humaneval"),
    )
    _dataset(
        "geometry3k",
        "geometry3k",
        "Geometry problems with a picture (arXiv 2105.04165), for models that see.",
        DatasetFacts({"train": 2101, "test": 601}, "MIT", "geometry", hub="hiyouga/geometry3k"),
    )
    _dataset(
        "ultrafeedback",
        "ultrafeedback",
        "Pairs of a better and a worse answer (arXiv 2310.01377).",
        DatasetFacts({"train": 61_135, "test": 2000}, "MIT", hub="HuggingFaceH4/ultrafeedback_binarized"),
    )
    _dataset(
        "hh-rlhf",
        "hh_rlhf",
        "Helpful and harmless dialogues (arXiv 2204.05862): pairs, demonstrations, or prompts for a reward model.",
        DatasetFacts(
            {"train": 112_052, "test": 12_451}, "MIT", hub="Dahoas/full-hh-rlhf", options=HelpfulHarmlessOptions
        ),
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
    _dataset(
        "reasoning-gym",
        "reasoning_gym",
        f"{len(TASKS)} kinds of generated problems, scored by their own verifiers (arXiv 2505.24760).",
        DatasetFacts(
            {"train": 2_000, "test": 200},
            "Apache-2.0",
            "reasoning_gym",
            options=ReasoningGymOptions,
            tasks=TASKS,
            extras=("reasoning-gym",),
        ),
    )
    _dataset(
        "custom",
        "custom",
        "Your own jsonl, JSON, Parquet or CSV file, by a map of its columns.",
        DatasetFacts({}, "yours", options=CustomOptions),
    )


def _dataset(name: str, module: str, doc: str, facts: DatasetFacts) -> None:
    register("dataset", name, where=f"{_PREPARE}.{module}:prepare", doc=doc, options=facts)
