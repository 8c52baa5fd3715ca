"""Update step of the FSDP2 engine on one GPU: forward, backward, optimizer; float32 master weights, bf16 compute.

    python tests/benchmarks/gpu_update.py 0.5B 1.5B 3B micro=4
    python tests/benchmarks/gpu_update.py 3B checkpointing=full
    python tests/benchmarks/gpu_update.py 4B lora=16

Each shape (random weights) prints one JSON line: median seconds of five steps after four of warm-up, MFU of the
model's FLOPs without recomputation against 989 TFLOP/s (dense bf16 of an H100 or H200), tokens a second, peak memory
and what `rlx plan` expects of it, the log-prob pass as a share of the update, and the share of a step in which the GPU
had nothing to do. `micro` micro-batches of `tokens` packed tokens make a step; every sequence has `length` tokens, all
of them trained. Other words: compile, liger, offload (true or false), checkpointing (full, selective, false), optimizer
(a name), lora (a rank), profile=FILE.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from gpu_shapes import SHAPES, VOCABULARY, plan_words, planned_peak
from gpu_shapes import config as shape_config
from transformers import Qwen2ForCausalLM

from verl_core.algorithms.loss import Metric, Need, Totals
from verl_core.batch import Batch
from verl_core.config.schema import ActorConfig, FsdpConfig, ModelConfig, OptimConfig
from verl_core.platforms import current
from verl_core.training.fsdp import FsdpEngine
from verl_core.training.fsdp.shard import local
from verl_core.training.protocol import MicroBatching

PEAK = 989e12


class Likelihood:
    """Mean negative log-likelihood; the entropy is asked for, as every policy loss does, and carries no gradient."""

    needs = frozenset({Need.LOGP, Need.ENTROPY})
    temperature = 1.0

    def __call__(self, out, batch: Batch, totals: Totals):
        share = -out[Need.LOGP].sum() / totals.tokens
        return share, {"entropy": Metric(out[Need.ENTROPY].detach().sum(), weight=batch.N)}


def model_flops(shape: str, tokens: int, length: int) -> float:
    """Of forward and backward: 6 a weight of a matrix and token, and causal attention's two products."""
    D, F, L, H, K = SHAPES[shape]
    matrices = L * (2 * D * D + 2 * D * K * (D // H) + 3 * D * F) + VOCABULARY * D
    return 6 * matrices * tokens + 3 * L * 2 * 2 * D * length * tokens / 2


def make_engine(shape: str, folder: Path, tokens: int, options: dict) -> FsdpEngine:
    config = shape_config(shape)
    config.save_pretrained(folder)
    if options.get("lora"):  # what lies below an adapter is read from its folder
        with torch.device("cuda"):
            Qwen2ForCausalLM(config).bfloat16().save_pretrained(folder)
    checkpointing = options.get("checkpointing", False)
    engine = FsdpEngine(
        ModelConfig(
            path=str(folder),
            enable_gradient_checkpointing=bool(checkpointing),
            recompute_granularity=checkpointing or "full",
            enable_activation_offload=options.get("offload", False),
            use_liger=options.get("liger", False),
            lora_rank=options.get("lora", 0),
        ),
        ActorConfig(
            optim=OptimConfig(optimizer=options.get("optimizer", "adamw")),
            fsdp_config=FsdpConfig(use_torch_compile=options.get("compile")),
            ulysses_sequence_parallel_size=options.get("split", 1),
        ),
        role="actor",
        platform=current("cuda"),
        micro=MicroBatching(tokens=tokens),
        weights=False,
    )
    with torch.no_grad():
        for p in engine.network.parameters() if not options.get("lora") else ():
            local(p).normal_(std=0.02) if p.ndim > 1 else local(p).fill_(1.0)
    return engine


def measure(shape: str, micro: int = 1, tokens: int = 16384, length: int = 2048, profile: str = "", **options) -> dict:
    S = micro * tokens // length
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(shape, Path(folder), tokens, options)
        rank = options.get("lora", 0)
        planned = planned_peak(plan_words(folder, micro, tokens, length, options.get("checkpointing"), rank))
    batch = Batch(torch.full((S,), length), torch.arange(S), {})
    batch = batch.add(ids_N=torch.randint(0, VOCABULARY, (batch.N,)), mask_N=torch.ones(batch.N, dtype=torch.bool))
    totals, loss = Totals(tokens=batch.N, sequences=S), Likelihood()
    seconds = []
    for i in range(9):
        if i == 4:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        engine.step(batch, loss, totals)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated()
    forward = []
    for _ in range(4):
        start = time.perf_counter()
        engine.forward(batch, loss.needs)
        torch.cuda.synchronize()
        forward.append(time.perf_counter() - start)
    took = median(seconds[4:])
    idle = idle_share(engine, batch, loss, totals, profile)
    return {
        "shape": shape, "micro_batches": micro, "tokens": tokens, "length": length, **options,
        "step_s": round(took, 4), "mfu": round(model_flops(shape, batch.N, length) / took / PEAK, 4),
        "tokens_per_s": round(batch.N / took), "peak_gb": round(peak / 1e9, 1),
        "planned_gb": round(planned, 1),
        "states_gb": round(sum((16 if p.requires_grad else 2) * local(p).numel() for p in
                               engine.network.parameters()) / 1e9, 1),
        "idle_share": idle, "forward_s": round(median(forward[1:]), 4),
        "forward_share": round(median(forward[1:]) / took, 3),
        "first_s": round(seconds[0], 1), "torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
    }  # fmt: skip


def idle_share(engine: FsdpEngine, batch: Batch, loss: Likelihood, totals: Totals, table: str) -> float:
    """Share of one step in which no kernel or copy ran; `table`: file for the profiler's table of that step."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CUDA, *([ProfilerActivity.CPU] if table else [])]  # the host's own events slow it
    with profile(activities=activities) as p:
        engine.step(batch, loss, totals)
        torch.cuda.synchronize()
    if table:
        text = p.key_averages().table(sort_by="self_cuda_time_total", row_limit=60, max_name_column_width=90)
        Path(table).write_text(text)
    on_device = (e for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA)
    spans = sorted((e.time_range.start, e.time_range.end) for e in on_device)
    busy, until = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return round(1 - busy / (until - spans[0][0]), 4)


def main(words: list[str]) -> None:
    torch.set_num_threads(1)  # as jobs do
    options = {k: int(v) if v.isdecimal() else {"true": True, "false": False}.get(v, v) for k, v in
               (word.split("=") for word in words if "=" in word)}  # fmt: skip
    for shape in (word for word in words if "=" not in word):
        print(json.dumps(measure(shape, **options)), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
