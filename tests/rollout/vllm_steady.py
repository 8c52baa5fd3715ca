"""Run by the environment's python: the same requests through vLLM's core by the short way and by its own; JSON of both.

python vllm_steady.py FOLDER
"""

from __future__ import annotations

import json
import sys

import torch

from verl_core.rollout.protocol import Sampling, TokenRequest
from verl_core.rollout.rows import Row, row_for
from verl_core.rollout.vllm import core as cores
from verl_core.rollout.vllm.machine import set_variables
from verl_core.rollout.vllm.options import VllmOptions
from verl_core.rollout.vllm.steady import Steady

VOCABULARY, ROWS, LENGTH = 384, 24, 512


def rows() -> list[Row]:
    """Of unlike lengths, some of one prompt, some that end early by an id, and more than run at once."""
    draw = torch.Generator().manual_seed(0)
    made = []
    for i in range(ROWS):
        ids = tuple(torch.randint(8, VOCABULARY, (5 + 37 * (i // 2 % 6),), generator=draw).tolist())
        rule = Sampling(max_tokens=40 + 13 * (i % 7), ignore_eos=i % 3 == 0, temperature=0.9)
        made.append(row_for(TokenRequest(str(i), str(i // 2), ids, rule, seed=i), LENGTH, None))
    return made


def run(options: VllmOptions) -> list[list[object]]:
    core, asked = cores.VllmCore(options), rows()
    for i, row in enumerate(asked):
        core.add(str(i), row)
    ended: list[str] = []
    while len(ended) < ROWS:
        ended += core.step()
    assert sorted(ended) == sorted(map(str, range(ROWS))), ended
    assert not core._core.scheduler.requests, "vllm still holds requests"
    free = core._core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    core.close()
    return [[row.ids, row.logps, row.finish] for row in asked] + [[free]]


def main(folder: str) -> None:
    # so small that rows are interrupted and start again
    options = VllmOptions(
        model=folder, eos_ids=tuple(range(300, 330)), dtype="float32", max_model_len=LENGTH, max_num_seqs=8,
        kv_cache_bytes=9 * 2**17, enforce_eager=True,
    )  # fmt: skip
    set_variables(options)
    told, interrupted = [], []
    Steady._told = lambda self, rows, plain=Steady._told: told.append(len(rows)) or plain(self, rows)
    from vllm.v1.core.sched.scheduler import Scheduler

    plain = Scheduler._preempt_request
    Scheduler._preempt_request = lambda self, *args: interrupted.append(1) or plain(self, *args)
    short = run(options)
    counts = [len(told), len(interrupted)]
    cores.take_steady_steps = lambda scheduler, push: False
    print(json.dumps({"short": short, "own": run(options), "steady": counts[0], "interrupted": counts[1]}))


if __name__ == "__main__":
    main(sys.argv[1])
