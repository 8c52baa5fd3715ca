"""Four graders on the same table of hand-made answers (answers/math.jsonl, gsm8k.jsonl), and how fast ours is.

    python tests/rewards/compare_math_verify.py [--wrong]

prints one JSON line: for each grader how many verdicts are wrong, falsely right and falsely wrong; `--wrong` lists
math-verify's wrong verdicts first. math-verify runs bare, with its own time limits, each row in a process of its own
that is killed after LIMIT_S (counted under "stopped").
"""

import argparse
import json
import multiprocessing
import re
import time
from collections.abc import Callable

from answer_table import rows

from verl_core.rewards import gsm8k, math
from verl_core.rewards.boxed import last_box
from verl_core.rewards.mathematics import equality, symbolic
from verl_core.rewards.mathematics.text import tight, unified

LIMIT_S = 15.0

Grader = Callable[[str, str], bool]


def ours(answer: str, gold: str) -> bool:
    return math.compute_score("math", answer, gold)["score"] == 1


def ours_gsm8k(answer: str, gold: str) -> bool:
    return gsm8k.compute_score("gsm8k", answer, gold)["score"] == 1


def math_verify(answer: str, gold: str) -> bool:
    from math_verify import parse, verify

    return verify(parse(f"${gold}$"), parse(answer))


def string_equality(answer: str, gold: str) -> bool:
    """The last box is the gold answer, letter by letter."""
    return last_box(answer) == (last_box(gold) or gold)


def verl_math(answer: str, gold: str) -> bool:
    """What veRL's math rule does: the last box, both sides brought into one spelling, compared as text."""
    start = answer.rfind("\\boxed")
    return start >= 0 and _verl_spelling(last_box(answer[start:]) or "") == _verl_spelling(gold)


def verl_gsm8k(answer: str, gold: str) -> bool:
    """What veRL's GSM8K rule does: the last `#### N` of the last 300 characters, without commas, compared as text."""
    found = re.findall(r"#### (-?[0-9.,]+)", answer[-300:])
    return bool(found) and found[-1].replace(",", "").replace("$", "") == gold


def _verl_spelling(text: str) -> str:
    """Layout, units, percent and degree signs and currency go; fractions and roots get their braces."""
    for gone in ("\n", "\\!", "\\left", "\\right", "^{\\circ}", "^\\circ", "\\$", "\\%", "%"):
        text = text.replace(gone, "")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").split("\\text{ ")[0]
    text = re.sub(r"^[a-zA-Z]{1,2}=", "", re.sub(r"^\.|(?<=[ {])\.", "0.", text).replace(" ", ""))
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text))
    text = "\\frac{1}{2}" if text == "0.5" else text
    return re.sub(r"^(-?\d+)/(-?\d+)$", r"\\frac{\1}{\2}", text)


def limited(grader: Grader) -> Callable[[str, str], bool | None]:
    """The grader in a process of its own; None when it is stopped after LIMIT_S."""

    def grade(answer: str, gold: str) -> bool | None:
        ours_end, its_end = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=lambda: its_end.send(grader(answer, gold)))
        process.start()
        verdict = ours_end.recv() if ours_end.poll(LIMIT_S) else None
        process.kill()
        process.join()
        return verdict

    return grade


def compare(table: list[dict], grader: Callable[[str, str], bool | None]) -> tuple[dict, list[dict]]:
    """(counts, the rows that the grader gets wrong)."""
    given = [(row, grader(row["answer"], row["gold"])) for row in table]
    wrong = [row for row, verdict in given if verdict is None or verdict != bool(row["verdict"])]
    counts = {
        "rows": len(table),
        "wrong": len(wrong),
        "falsely right": sum(not row["verdict"] for row, verdict in given if verdict),
        "falsely wrong": sum(row["verdict"] for row, verdict in given if verdict is False),
        "stopped": sum(verdict is None for _, verdict in given),
    }
    return counts, wrong


def speed(table: list[dict], grader: Grader, rounds: int = 1) -> int:
    """Answers a second of processor time; no verdict and no reading of an answer is remembered from round to round."""
    symbolic.warm_up()
    seconds = 0.0
    for _ in range(rounds):
        for cached in (equality._same_answer, equality._readings, symbolic._parsed):
            cached.cache_clear()
        began = time.process_time()
        for row in table:
            grader(row["answer"], row["gold"])
        seconds += time.process_time() - began
    return round(rounds * len(table) / seconds)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--wrong", action="store_true", help="list math-verify's wrong verdicts")
    wanted = options.parse_args()
    import math_verify as _  # noqa: F401 (before the forks, so that none pays for the import)

    table, short = rows("math"), rows("gsm8k")
    bare, corrected = compare(table, limited(math_verify))
    if wanted.wrong:
        for row in corrected:
            print(json.dumps(row, ensure_ascii=False))
    as_text = [row for row in table if tight(unified(last_box(row["answer"]) or "")) == tight(unified(row["gold"]))]
    by_value = [row for row in table if row not in as_text]
    print(
        json.dumps(
            {
                "math": {
                    "ours": compare(table, ours)[0],
                    "math-verify": bare,
                    "verl's rule": compare(table, verl_math)[0],
                    "string equality": compare(table, string_equality)[0],
                },
                "gsm8k": {"ours": compare(short, ours_gsm8k)[0], "verl's rule": compare(short, verl_gsm8k)[0]},
                "answers a second, one core": {
                    "equal as text": speed(as_text, ours, 100),
                    "by value": speed(by_value, ours, 5),
                    "gsm8k": speed(short, ours_gsm8k, 50),
                },
            }
        )
    )


if __name__ == "__main__":
    main()
