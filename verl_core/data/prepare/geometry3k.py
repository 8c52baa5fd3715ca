"""Geometry3K (Lu et al. 2021, arXiv 2105.04165): 2,101 training and 601 test problems about a picture, MIT licence.

The pictures stay as they are, in a column `images` of {bytes, path}; `<image>` in the prompt says where one belongs.
"""

from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import Record, prompt_row, published, text
from verl_core.data.prepare.source import Layout
from verl_core.data.rows import broken, short

LAYOUT = Layout("hiyouga/geometry3k", {"train": "train", "test": "test"}, "images, problem, answer")
INSTRUCTION = "Think first, inside <think> </think>, then give the final answer in \\boxed{}."
PLACE = "<image>"


def prepare(wanted: Wanted) -> Prepared:
    """Problems with their pictures. Raises UserError (`published`)."""
    return published(wanted, LAYOUT, _row)


def _row(record: Record, split: str, index: int) -> Row:
    problem, gold, images = text(record, "problem"), text(record, "answer"), record.get("images")
    if not isinstance(images, list) or not all(isinstance(i, dict) and i.get("bytes") for i in images):
        broken(record, "images", f"is {short(images)}, not a list of {{bytes, path}}")
    if problem.count(PLACE) != len(images):
        broken(record, "problem", f"has {problem.count(PLACE)} {PLACE} for {len(images)} images")
    worked = {"answer": f"<think>\n</think>\n\\boxed{{{gold}}}", "question": problem}
    row = prompt_row(LAYOUT.hub, f"{problem}\n\n{INSTRUCTION}", "math", gold, split, index, **worked)
    return row | {"images": [{"bytes": image["bytes"], "path": image.get("path")} for image in images]}
