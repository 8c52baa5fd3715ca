"""MATH (Hendrycks et al. 2021, arXiv 2103.03874): 7,500 training and 5,000 test problems, and the 500 of the test
problems that are known as MATH-500 (Lightman et al. 2023, arXiv 2305.20050). MIT licence."""

from verl_core.data.prepare.prepared import Prepared, Row, Wanted
from verl_core.data.prepare.published import Record, prompt_row, published, text
from verl_core.data.prepare.source import Layout
from verl_core.data.rows import broken
from verl_core.rewards.boxed import last_box

LAYOUTS = {
    "math": Layout(
        "DigitalLearningGmbH/MATH-lighteval", {"train": "train", "test": "test"}, "problem, solution, level, type"
    ),
    "math-500": Layout("HuggingFaceH4/MATH-500", {"test": "test"}, "problem, solution, answer, subject, level"),
}
INSTRUCTION = (
    "Let's think step by step and output the final answer within \\boxed{}."  # veRL's, so that results compare
)


def prepare(wanted: Wanted) -> Prepared:
    """Problems with veRL's instruction; the gold is what the last box holds. Raises UserError (`published`)."""
    layout = LAYOUTS[wanted.name]

    def row(record: Record, split: str, index: int) -> Row:
        problem, solution = text(record, "problem"), text(record, "solution")
        gold = last_box(solution)
        if not gold:
            broken(record, "solution", f"has no \\boxed{{}}: ...{solution[-40:]!r}")
        about = {"level": str(record.get("level", "")), "subject": record.get("subject") or record.get("type") or ""}
        told = {"answer": solution, "question": problem, **about}
        return prompt_row(layout.hub, f"{problem} {INSTRUCTION}", "math", gold, split, index, **told)

    return published(wanted, layout, row)
