"""Questions with short answers, as Search-R1 trains on them (Jin et al. 2025, arXiv 2503.09516): Natural Questions and
HotpotQA to train, seven sets to test. The prompt asks for the answer alone: tools are no part of these rows."""

from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import Record, prompt_row, published, text
from verl_core.data.prepare.source import Layout
from verl_core.data.rows import broken, short

LAYOUT = Layout(
    "PeterJinGo/nq_hotpotqa_train", {"train": "train", "test": "test"}, "question, golden_answers, data_source"
)
INSTRUCTION = "Think about it, then give the short answer between <answer> and </answer>."


def prepare(wanted: Wanted) -> Prepared:
    """Rows of `searchR1_<set>`, whose gold is {target: [answers that are right]}. Raises UserError (`published`)."""
    return published(wanted, LAYOUT, _row, lenient=True)


def _row(record: Record, split: str, index: int) -> Row:
    question, source = text(record, "question"), text(record, "data_source")
    golds = record.get("golden_answers")
    if not isinstance(golds, list) or not golds or not all(isinstance(gold, str) for gold in golds):
        broken(record, "golden_answers", f"is {short(golds)}, not a list of texts")
    content = f"{question.rstrip('?').strip()}?\n\n{INSTRUCTION}"
    worked = {"answer": f"<answer>{golds[0]}</answer>", "question": question}
    source = f"searchR1_{source.removeprefix('searchR1_')}"
    return prompt_row(source, content, "fact-reasoning", {"target": golds}, split, index, **worked)
