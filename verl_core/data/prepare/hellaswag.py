"""HellaSwag (Zellers et al. 2019, arXiv 1905.07830): which of four endings goes on with a scene. 39,905 training rows;
the 10,042 of the validation split are the test here, because the published test rows have no labels. MIT licence."""

import re

from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import Record, prompt_row, published, text
from verl_core.data.prepare.source import Layout
from verl_core.data.rows import broken, short

LAYOUT = Layout("Rowan/hellaswag", {"train": "train", "test": "validation"}, "activity_label, ctx, endings, label")
INSTRUCTION = "Which ending fits best? Reason briefly, then end with a line `Answer: LETTER`."
LETTERS = "ABCD"
_MARKUP = re.compile(
    r"\s*\[(?:header|title|step|substeps)\]\s*"
)  # of the WikiHow pages that half of the scenes are from


def prepare(wanted: Wanted) -> Prepared:
    """The scene, its lettered endings and the instruction; the gold is a letter. Raises UserError (`published`)."""
    return published(wanted, LAYOUT, _row)


def _row(record: Record, split: str, index: int) -> Row:
    endings, label = record.get("endings"), str(record.get("label"))
    if not isinstance(endings, list) or len(endings) != len(LETTERS):
        broken(record, "endings", f"is {short(endings)}, not a list of {len(LETTERS)} texts")
    if label not in ("0", "1", "2", "3"):
        broken(record, "label", f"is {short(record.get('label'))}, not 0 to {len(LETTERS) - 1}")
    endings = [_plain(str(ending)) for ending in endings]
    scene = f"{text(record, 'activity_label')}: {_plain(text(record, 'ctx'))}"
    options = "\n".join(f"{letter}. {ending}" for letter, ending in zip(LETTERS, endings, strict=True))
    question, gold = f"{scene}\n\n{options}\n\n{INSTRUCTION}", LETTERS[int(label)]
    told = {"answer": f"Answer: {gold}", "choices": endings}
    return prompt_row(LAYOUT.hub, question, "commonsense", gold, split, index, **told)


def _plain(text: str) -> str:
    return _MARKUP.sub(" ", text).strip()
