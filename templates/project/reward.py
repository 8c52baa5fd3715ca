"""The reward of this project: how good an answer is.

rlx calls `compute_score` in separate processes, once an answer, with a time limit (reward.timeout_s). Test it with
`python test_reward.py` before you train: what it rewards is what the model learns.
"""

import re

FINAL_ANSWER = re.compile(r"####\s*(-?[\d,]+(?:\.\d+)?)")


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Reward of one answer.

    data_source:  name of the row's dataset
    solution_str: what the model wrote, without the prompt
    ground_truth: reward_model.ground_truth of the row
    extra_info:   the row's extra_info, or None

    Returns a number, or a dict with `score` and further numbers that are logged beside it. Here: 1 when the number after
    the last `####` is the right one, else 0; `answered` says whether there was such a number.
    """
    found = FINAL_ANSWER.findall(solution_str)
    if not found:
        return {"score": 0.0, "answered": 0.0}
    right = float(found[-1].replace(",", "")) == float(str(ground_truth).replace(",", ""))
    return {"score": 1.0 if right else 0.0, "answered": 1.0}
