"""Catalogue entries of the rules that score answers: for a row's data source, and by a short name of their own."""

import difflib
from fnmatch import fnmatchcase

from verl_core.config.errors import UserError
from verl_core.config.registry import Entry, entry, names, register


def register_scorers() -> None:
    _rule(
        ("gsm8k", "openai/gsm8k"),
        where="verl_core.rewards.gsm8k:compute_score",
        keywords=("method",),
        doc="1 when the number after #### is the gold number; method: strict, boxed, flexible.",
    )
    _rule(
        ("show_your_work", "rlx/show-your-work"),
        where="verl_core.rewards.show_your_work:compute_score",
        doc="1 when the last #### N is the gold number.",
    )
    _rule(
        ("math", "DigitalLearningGmbH/MATH-lighteval", "lighteval/MATH", "HuggingFaceH4/MATH-500", "numina_*"),
        where="verl_core.rewards.math:compute_score",
        keywords=("extract",),
        doc="1 when the box holds what equals the gold answer; extract: boxed, answer_line, flexible.",
    )
    _rule(
        ("dapo_math", "math_dapo", "math_dapo_reasoning", "aime*"),
        where="verl_core.rewards.dapo_math:compute_score",
        keywords=("wrong",),
        doc="1 when what follows the last `Answer:` equals the gold answer, else `wrong` (0; veRL: -1).",
    )
    _rule(
        ("geometry", "hiyouga/geometry3k"),
        where="verl_core.rewards.geometry:compute_score",
        keywords=("accuracy_weight", "format_weight"),
        doc="0.9 for the right answer in the box, 0.1 for <think>...</think> before it.",
    )
    _rule(
        ("countdown",),
        where="verl_core.rewards.countdown:compute_score",
        keywords=("at_most_once",),
        doc="1 when an expression of the given numbers, each used once, equals the target.",
    )
    _rule(
        ("knights_and_knaves",),
        where="verl_core.rewards.knights_and_knaves:compute_score",
        doc="1 when everybody is called what they are: knight or knave.",
    )
    _rule(
        ("reasoning_gym", "reasoning_gym/*"),
        where="verl_core.rewards.reasoning_gym:compute_score",
        doc="What the verifier of the row's reasoning-gym task gives, from 0 to 1.",
    )
    _rule(
        ("multiple_choice", "Rowan/hellaswag"),
        where="verl_core.rewards.multiple_choice:compute_score",
        doc="1 when the answer settles on the gold letter, or on that option's words.",
    )
    _rule(
        (
            *("code", "mbpp", "google-research-datasets/mbpp", "humaneval", "openai/openai_humaneval"),
            *("apps", "codecontests", "codeforces", "taco", "livecodebench*"),
        ),
        where="verl_core.rewards.code:compute_score",
        keywords=("partial",),
        doc="1 when a program passes all tests, in reward.sandbox; partial: the share of tests.",
    )
    _rule(
        ("qa", "searchR1_*"),
        where="verl_core.rewards.qa:compute_score",
        doc="1 when a short answer is one of the gold answers, by SQuAD's normalisation.",
    )
    _rule(("qa_f1",), where="verl_core.rewards.qa:compute_f1", doc="The F1 of words with the nearest gold answer.")
    _rule(
        ("format",),
        where="verl_core.rewards.think_format:compute_score",
        keywords=("tags", "box", "opened", "shaped"),
        doc="1 when the text is <think>...</think><answer>...</answer>, or the tags and box asked for.",
    )
    _rule(
        ("repetition",),
        where="verl_core.rewards.repetition:compute_score",
        keywords=("n", "penalty", "unit"),
        doc="Minus the share of n-grams that the answer has said before, times penalty.",
    )
    _rule(
        ("script",),
        where="verl_core.rewards.script:compute_score",
        keywords=("scripts", "threshold"),
        doc="The share of letters in the wanted scripts, such as latin or chinese.",
    )


def scorer_of(data_source: str) -> Entry:
    """The rule of a data source or a rule's short name: that very name, else the longest pattern (`aime*`) that fits.

    Raises UserError with the names that are near.
    """
    known = names("scorer")
    if data_source in known:
        return entry("scorer", data_source)
    if fitting := [name for name in known if name.endswith("*") and fnmatchcase(data_source, name)]:
        return entry("scorer", max(fitting, key=len))
    near = difflib.get_close_matches(data_source, known, n=3)
    question = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UserError(
        f"no built-in reward for data_source {data_source!r}{question}",
        hint="`rlx rewards ls` lists them; your own is reward.custom_reward_function.path=FILE.py with a compute_score",
    )


def _rule(names: tuple[str, ...], *, where: str, doc: str, keywords: tuple[str, ...] = ()) -> None:
    """A rule under its short name, which comes first, and under every data source it serves. A name that ends in `*`
    stands for all that begin with what is before it. `keywords`: the arguments of its own."""
    keys = tuple(f"reward.reward_kwargs.{keyword}" for keyword in keywords)
    for name in names:
        register("scorer", name, where=where, keys=keys, doc=doc)
