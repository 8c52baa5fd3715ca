"""The supervised warm-up of a builtin model: it makes the model that RL starts from, as a Hugging Face folder, so that
the RL phase loads it exactly as it would load any other model."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file

from verl_core.algorithms.loss import Totals
from verl_core.algorithms.losses import SftLoss
from verl_core.config.model_roles import AFTER, taught_phases
from verl_core.config.schema import ActorConfig, RlxConfig, WarmupPhase
from verl_core.controller.computing import prepare_computing
from verl_core.controller.seeds import draw_seed
from verl_core.data.builtin import builtin_corpus
from verl_core.data.demonstrations import DemonstrationSource, load_demonstrations
from verl_core.models.builtin import write_builtin
from verl_core.models.pretrained import load_tokenizer
from verl_core.platforms import Platform
from verl_core.tracking.jsonl import JsonlTracker
from verl_core.training.fsdp import FsdpEngine
from verl_core.training.protocol import MicroBatching

log = logging.getLogger(__name__)

DEMONSTRATIONS = 4000  # pairs a phase draws its batches from
Progress = Callable[[str, int, int], None]


def warm_up(config: RlxConfig, run_dir: Path, progress: Progress, stopped: Callable[[], bool]) -> Path | None:
    """Builds the builtin model, trains every phase on it and returns its folder, `<run_dir>/warmup`; a folder that an
    earlier attempt finished is returned at once. A phase that makes a teacher leaves it there too. None when `stopped`
    became true on the way.

    progress(phase name, step, steps) is called after each optimizer step. One line a step goes to warmup.jsonl.
    """
    folder, partial = run_dir / "warmup", run_dir / "warmup.partial"
    if (folder / "config.json").exists():
        return folder
    shutil.rmtree(partial, ignore_errors=True)
    (run_dir / "warmup.jsonl").unlink(missing_ok=True)
    seed = config.trainer.seed
    write_builtin(partial, builtin_corpus(config.model.path, seed), draw_seed(seed, "builtin-model"))
    tracker = JsonlTracker(run_dir / "warmup.jsonl")
    platform = prepare_computing(config.trainer)
    done = 0
    for number, phase in enumerate(config.warmup.phases):
        engine = _engine(config, phase, partial, platform)
        for step, metrics in _train(config, phase, number, engine, partial):
            tracker.log(done + step, metrics)
            progress(phase.name, step, phase.steps)
            if stopped():
                tracker.finish(0)
                return None
        done += phase.steps
        # clone: a tied or fused tensor must not be stored as a view of another
        weights = {name: tensor.detach().cpu().clone() for name, tensor in engine.named_weights()}
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        if phase.name in taught_phases(config):
            shutil.copytree(partial, partial / AFTER / phase.name, ignore=shutil.ignore_patterns(AFTER))
    tracker.finish(0)
    partial.rename(folder)
    return folder


def _engine(config: RlxConfig, phase: WarmupPhase, folder: Path, platform: Platform) -> FsdpEngine:
    # whatever the run has
    one_rank = replace(config.actor.fsdp_config, fsdp_size=-1, tensor_parallel_size=1, expert_parallel_size=1)
    engine = FsdpEngine(
        replace(config.model, enable_gradient_checkpointing=False, lora_rank=0),  # an adapter comes after the warm-up
        ActorConfig(optim=phase.optim, fsdp_config=one_rank),
        role="actor",
        path=str(folder),
        platform=platform,
        micro=MicroBatching(sequences=phase.batch_size),
        seed=config.trainer.seed,
    )
    engine.set_total_steps(phase.steps)
    return engine


def _train(
    config: RlxConfig, phase: WarmupPhase, number: int, engine: FsdpEngine, folder: Path
) -> Iterator[tuple[int, dict[str, float]]]:
    seed = draw_seed(config.trainer.seed, "warmup", number)
    pairs = load_demonstrations(phase.data, DEMONSTRATIONS, config.trainer.seed)
    source = DemonstrationSource(pairs, load_tokenizer(config.model, str(folder)), phase.batch_size, seed)
    loss = SftLoss()
    for step in range(1, phase.steps + 1):
        began = time.perf_counter()
        batch = source.batch(step)
        metrics = engine.step(batch, loss, Totals.of(batch))
        named = {f"warmup/{name.rsplit('/', 1)[-1]}": value for name, value in metrics.items()}
        yield step, named | {"warmup/phase": number, "timing_s/step": time.perf_counter() - began}
