"""What shared prompts gain on one GPU: update step and log-prob pass of the engine with and without, in one run.

    python tests/benchmarks/gpu_shared_prompt.py 0.5B 1.5B groups=8 tokens=16384
    python tests/benchmarks/gpu_shared_prompt.py 1.5B prompt=512 answer=256

Each shape (random weights) prints a JSON line for each of G = 8, 16 with prompts of 512, 1024 and answers of 256, 512
tokens: median seconds of five steps after four of warm-up, unshared and shared, and their ratio; `rows`, the ratio of
the rows' tokens, which is what linear layers alone would gain; peak memory. `groups` prompts make a step.
"""

import json
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median

import torch
from gpu_update import VOCABULARY, Likelihood, make_engine

from verl_core.algorithms.loss import Totals
from verl_core.batch import Batch
from verl_core.batch.shared_prompt import row_tokens, shared_S

CASES = list(product((8, 16), (512, 1024), (256, 512)))  # answers of a prompt, their prompt's tokens, their own


def make_batch(groups: int, G: int, prompt: int, answer: int) -> Batch:
    torch.manual_seed(0)
    prompts = torch.randint(0, VOCABULARY, (groups, 1, prompt)).expand(-1, G, -1)
    ids = torch.cat([prompts, torch.randint(0, VOCABULARY, (groups, G, answer))], 2)
    mask = (torch.arange(prompt + answer) >= prompt).expand_as(ids)
    columns = {"ids_N": ids.flatten(), "mask_N": mask.flatten()}
    return Batch(torch.full((groups * G,), prompt + answer), torch.arange(groups * G) // G, columns)


def timed(work, warm_up: int, rounds: int) -> float:
    seconds = []
    for _ in range(warm_up + rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return median(seconds[warm_up:])


def measure(engine, batch: Batch, share: bool) -> dict[str, float]:
    engine.share_prompt = share
    loss, totals = Likelihood(), Totals.of(batch)
    torch.cuda.reset_peak_memory_stats()
    step = timed(lambda: engine.step(batch, loss, totals), 4, 5)
    forward = timed(lambda: engine.forward(batch, loss.needs), 2, 5)
    return {"step_s": step, "forward_s": forward, "peak_gb": torch.cuda.max_memory_allocated() / 1e9}


def main(words: list[str]) -> None:
    torch.set_num_threads(1)  # as jobs do
    options = {k: int(v) for k, v in (word.split("=") for word in words if "=" in word)}
    names = ("G", "prompt", "answer")
    wanted = [case for case in CASES if all(options.get(k, v) == v for k, v in zip(names, case, strict=True))]
    tokens = options.get("tokens", 16384)
    for shape in (word for word in words if "=" not in word):
        with tempfile.TemporaryDirectory() as folder:
            engine = make_engine(shape, Path(folder), tokens, {})
        for G, prompt, answer in wanted:
            batch = make_batch(options.get("groups", 8), G, prompt, answer)
            found = {name: measure(engine, batch, name == "shared") for name in ("unshared", "shared")}
            rows = batch.N / row_tokens(batch.drop().add(shared_len_S=shared_S(batch)))
            line = {"shape": shape, "G": G, "prompt": prompt, "answer": answer, "rows": round(rows, 2)}
            for what in ("step_s", "forward_s"):
                line |= {f"{name}_{what}": round(found[name][what], 4) for name in found}
                line[f"gain_{what[:-2]}"] = round(found["unshared"][what] / found["shared"][what], 2)
            line |= {f"{name}_peak_gb": round(found[name]["peak_gb"], 1) for name in found}
            print(json.dumps(line | {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
