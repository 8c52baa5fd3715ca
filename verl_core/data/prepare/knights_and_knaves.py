"""Knights and knaves (Smullyan 1978), made here: who tells the truth and who lies, from what each says of all. Every
problem has exactly one solution, found by looking at all 2^n of them."""

from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from verl_core.config.generated_data import KnightsAndKnavesOptions
from verl_core.data.prepare.generated import generated, refuse_changed
from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import Record, prompt_row, published, text
from verl_core.data.prepare.source import Layout
from verl_core.data.prepare.truth_tables import Claim, draw_claim, solutions, spoken
from verl_core.data.rows import broken, present, short
from verl_core.rewards.knights_and_knaves import compute_score

DATA_SOURCE = "knights_and_knaves"
LAYOUT = Layout("", {"train": "train", "test": "test"}, "question, metadata: {names, solution}, answer, if any")
NAMES = (
    "Ada",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Iris",
    "Jack",
    "Kira",
    "Leo",
    "Mona",
    "Noah",
)
RULES = (
    "On an island everybody is either a knight, who always tells the truth, or a knave, who always lies. You meet "
    "{names}."
)
INSTRUCTION = (
    "Think it through first, then say between <answer> and </answer> what each of them is, for example "
    "<answer>{example}</answer>."
)


@dataclass(frozen=True)
class Island:
    """Who is there, what each says, and for each whether they are a knight."""

    names: tuple[str, ...]
    claims: tuple[Claim, ...]
    knights: tuple[bool, ...]

    @property
    def key(self) -> tuple[Claim, ...]:
        """Other names make no other problem."""
        return self.claims


def prepare(wanted: Wanted) -> Prepared:
    """Problems made by seed; with `--source`, those of files as reasoning-gym writes its task knights_knaves.

    Raises UserError for options that allow too few problems, and as `published` does.
    """
    if wanted.source is not None:
        refuse_changed(wanted)
        return published(wanted, LAYOUT, _read)
    return generated(wanted, lambda random: (draw(random, wanted.options) for _ in count()), _row)


def draw(random: Random, options: KnightsAndKnavesOptions) -> Island | None:
    """An island, or None where what was drawn has no solution, or several."""
    n = random.randint(options.min_people, options.max_people)
    claims = tuple(draw_claim(random, n, options.depth) for _ in range(n))
    found = solutions(claims)
    if len(found) != 1:
        return None
    return Island(tuple(random.sample(NAMES, n)), claims, found[0])


def _row(island: Island, split: str, index: int) -> Row:
    names = island.names
    said = " ".join(f'{name} says: "{spoken(claim, names)}."' for name, claim in zip(names, island.claims, strict=True))
    gold = {"names": list(names), "knights": list(island.knights), "knight": "knight", "knave": "knave"}
    return _prompt(f"{RULES.format(names=listed(names))} {said}", gold, split, index)


def _read(record: Record, split: str, index: int) -> Row:
    """Raises BrokenRow for a record without question, names and solution, or whose answer is another."""
    metadata = present(record, "metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    names, knights = metadata.get("names"), metadata.get("solution")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        broken(record, "metadata.names", f"is {short(names)}, not a list of names")
    if not isinstance(knights, list) or [type(k) for k in knights] != [bool] * len(names):
        broken(record, "metadata.solution", f"is {short(knights)}, not true or false for each name")
    terms = metadata.get("knight_knave_terms") or {}
    gold = {
        "names": names,
        "knights": knights,
        "knight": terms.get("knight", "knight"),
        "knave": terms.get("knave", "knave"),
    }
    answer = record.get("answer")
    if answer is not None and not compute_score(DATA_SOURCE, str(answer), gold)["score"]:
        broken(record, "answer", f"is not the solution: {short(answer)}")
    return _prompt(text(record, "question"), gold, split, index)


def _prompt(question: str, gold: dict[str, Any], split: str, index: int) -> Row:
    names, knight, knave = gold["names"], gold["knight"], gold["knave"]
    example = f"Xenia is {_a(knight)} and Yann is {_a(knave)}"  # not of the people there: no answer to be copied
    answer = listed([f"{n} is {_a(knight if k else knave)}" for n, k in zip(names, gold["knights"], strict=True)])
    content = f"{question} {INSTRUCTION.format(example=example)}"
    return prompt_row(DATA_SOURCE, content, "logic", gold, split, index, answer=f"<answer>{answer}</answer>")


def listed(words: tuple[str, ...] | list[str]) -> str:
    """`A, B and C`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
