"""Scores knights and knaves: what the answer says that each person is must be the solution."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from verl_core.rewards.final_answer import after_thinking, tagged
from verl_core.rewards.verdict import UnusableGold

_MARKUP = str.maketrans("", "", "*_`")
_VERBS = frozenset(["is", "are", "was", "were", ":", "=", "|", "(", "-", "–", "—", "->", "→"])
_DENIALS = frozenset(["not", "isn't", "isn’t", "aren't", "aren’t"])
_PREDICATES = _VERBS | _DENIALS
_LINKS = frozenset(["a", "an", "the", "both", "all", "and", "as", ",", "&", ")"])


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> dict[str, Any]:
    """score and acc: 1 when everybody is called what they are, and nobody also the opposite, else 0; people: the share
    of people who are; format: 1 when there is an answer between `<answer>` tags.

    ground_truth: `{"names": [...], "knights": [true, ...], "knight": word, "knave": word}`, or that as JSON; the words
    are "knight" and "knave" where they are absent. What the last `<answer>` holds is read, else all after the thoughts:
    "Ada is a knight", "Ada: knight", "Ada and Ben are knaves", "Ada is not a knave", in any case of letters.
    Raises UnusableGold for any other ground truth.
    """
    gold, knight, knave = _gold(ground_truth)
    shown = after_thinking(solution_str)
    inside = tagged(shown)
    text = inside if inside is not None else shown
    said: dict[str, set[bool]] = {name: set() for name in gold}
    for name, is_knight in _statements(text, list(gold), knight, knave):
        said[name].add(is_knight)
    hits = sum(said[name] == {truth} for name, truth in gold.items())
    right = float(hits == len(gold))
    return {
        "score": right,
        "acc": right,
        "pred": _shown(said, knight, knave),
        "reason": _reason(said, right),
        "people": hits / len(gold),
        "format": float(inside is not None),
    }


def _gold(ground_truth: Any) -> tuple[dict[str, bool], str, str]:
    try:
        gold = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
        people = dict(zip(gold["names"], gold["knights"], strict=True))
        words = [gold.get("knight") or "knight", gold.get("knave") or "knave"]
        usable = bool(people) and len(people) == len(gold["names"])
        usable = usable and all(isinstance(n, str) and n.strip() and isinstance(k, bool) for n, k in people.items())
    except (ValueError, TypeError, KeyError, AttributeError):
        usable = False
    if not usable:
        raise UnusableGold(ground_truth)
    return people, words[0], words[1]


def _statements(text: str, names: list[str], knight: str, knave: str) -> Iterator[tuple[str, bool]]:
    """(name, whether called a knight) for each time somebody is called something; one pass over the words.

    A role counts for the names before it while nothing but verbs, articles, commas and "and" stands between; the end of
    a sentence or any other word forgets them. "a knight or a knave", as the question has it, says nothing.
    """
    known = {name.casefold(): name for name in names}
    roles = {form: is_knight for word, is_knight in ((knight, True), (knave, False)) for form in _forms(word)}
    words = _words(text, [*known, *roles])
    named: set[str] = set()
    called: set[str] = set()  # those whom the last role spoke of: "a knight and a knave" calls them both
    verb = denied = False
    pending: tuple[set[str], bool] | None = None  # said, unless "or" follows
    for word in words:
        if pending and word not in ("or", "/"):
            yield from ((name, pending[1]) for name in pending[0])
            pending = None
        if word in known:
            if verb:
                named = set()
            named.add(known[word])
            called = set()
            verb = denied = False
        elif word in roles and (named or called):
            called = named or called
            pending, named, verb, denied = (called, roles[word] != denied), set(), False, False
        elif word in _PREDICATES:
            verb, denied = True, denied != (word in _DENIALS)
        elif word in ("or", "/"):
            pending, called = None, set()
        elif word not in _LINKS:
            named, called, verb, denied = set(), set(), False, False
    if pending:
        yield from ((name, pending[1]) for name in pending[0])


def _words(text: str, special: list[str]) -> Iterator[str]:
    """Names, roles, words and marks in order, in lower case; a line break is a word."""
    phrases = "|".join(re.escape(word) for word in sorted(special, key=len, reverse=True))
    pattern = re.compile(rf"\b(?:{phrases})\b|->|[^\W_]+(?:['’][^\W_]+)?|[^\w \t]|\n")
    return (found[0] for found in pattern.finditer(text.translate(_MARKUP).casefold()))


def _forms(word: str) -> tuple[str, str]:
    """One and many: hero, heroes; knave, knaves."""
    word = word.casefold()
    return word, word + ("es" if word.endswith(("o", "s", "x", "ch", "sh")) else "s")


def _shown(said: Mapping[str, set[bool]], knight: str, knave: str) -> str | None:
    words = {frozenset([True]): knight, frozenset([False]): knave, frozenset([True, False]): "both"}
    told = [f"{name} {words[frozenset(is_knight)]}" for name, is_knight in said.items() if is_knight]
    return ", ".join(told) or None


def _reason(said: Mapping[str, set[bool]], right: float) -> str:
    if right:
        return "right"
    if not any(said.values()):
        return "no answer found"
    if any(len(called) == 2 for called in said.values()):
        return "somebody is called both"
    return "wrong" if all(said.values()) else "somebody is left out"
