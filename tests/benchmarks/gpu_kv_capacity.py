"""Tokens that vLLM's cache has room for, by `rlx plan` and by vLLM itself, on an H200: a JSON line a configuration.

    python tests/benchmarks/gpu_kv_capacity.py [0.5B 1.5B 3B]

Shapes of Qwen2.5, shares of the card, lengths and sequences at once as in ROWS; the engine starts with dummy weights.
"""

from __future__ import annotations

import json
import sys
import tempfile

import gpu_shapes

from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.planning import gpus
from verl_core.planning.engine_memory import cache_room
from verl_core.planning.plan import shapes_of
from verl_core.planning.system import system_of
from verl_core.rollout.child import ChildEngine

PROMPT = 512
ROWS = [  # shape, share of the card, longest answer, sequences at once
    ("0.5B", 0.2, 512, 256),
    ("0.5B", 0.4, 512, 1024),
    ("1.5B", 0.5, 1536, 512),
    ("3B", 0.7, 3584, 256),
]


def planned(folder: str, share: float, answer: int, sequences: int) -> float:
    words = [
        f"model.path={folder}",
        "rollout.engine=vllm",
        f"rollout.gpu_memory_utilization={share}",
        f"rollout.max_num_seqs={sequences}",
        f"data.max_prompt_length={PROMPT}",
        f"data.max_response_length={answer}",
    ]
    config = effective(resolve("gsm8k-grpo", words).config)
    system = system_of(config, shapes_of(config), gpus.named("H200"))
    assert system.engine is not None
    return cache_room(system.engine, system.gpu.memory) / system.engine.cache_per_token


def measured(folder: str, share: float, answer: int, sequences: int) -> int:
    options = {
        "model": folder, "eos_ids": [], "max_model_len": PROMPT + answer, "max_num_seqs": sequences,
        "gpu_memory_utilization": share, "load_format": "dummy", "enable_sleep": True,
    }  # fmt: skip
    with ChildEngine("verl_core.rollout.vllm:make", options) as engine:
        return engine.call("capacity_tokens").result()


def main() -> None:
    for shape, *rule in (row for row in ROWS if row[0] in sys.argv[1:] or not sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            gpu_shapes.config(shape).save_pretrained(folder)
            plan, vllm = planned(folder, *rule), measured(folder, *rule)
        keys = dict(zip(("share", "answer", "sequences"), rule, strict=True))
        row = {"shape": shape, **keys, "plan": round(plan), "vllm": vllm, "plan/vllm": round(plan / vllm, 4)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
