"""What `rlx eval` becomes: `python -m verl_core.controller.eval_job SOURCE --config FILE [--data FILE] [--out FILE]`.

SOURCE is a Hugging Face folder or hub name, a run directory (its newest whole checkpoint), or a checkpoint. Answers are
generated and scored by the same parts that training validates with.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.process import run_job
from verl_core.config.schema import ModelConfig, RlxConfig
from verl_core.config.write import load

talk = Console(stderr=True, highlight=False, soft_wrap=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m verl_core.controller.eval_job")
    parser.add_argument("source")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--data", action="append", help="prompts instead of data.val_files; may be repeated")
    parser.add_argument("--out", type=Path, help="write every answer with its score, one JSON object a line")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
    args = parser.parse_args(argv)
    if args.out:
        _make_room(args.out)  # before minutes are spent on answers that could not be kept
    config = load(args.config)
    if args.data:
        config = replace(config, data=replace(config.data, val_files=args.data))
    # Only generation runs here: no critic, no reference.
    config = effective(config)
    config = replace(
        config,
        actor=replace(config.actor, use_kl_loss=False),
        algorithm=replace(config.algorithm, use_kl_in_reward=False),
        critic=replace(config.critic, enable=False),
    )
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    metrics, answers = asyncio.run(evaluate(config, args.source))
    if args.out:
        args.out.write_text("".join(json.dumps(a, ensure_ascii=False) + "\n" for a in answers), encoding="utf-8")
    if args.json:
        print(json.dumps({"source": args.source, "answers": len(answers), "metrics": metrics}))
    else:
        for name, value in metrics.items():
            print(f"{name}  {value:.4f}")
    return 0


def _make_room(out: Path) -> None:
    """Makes the folder of the answers' file. Raises UserError when the file could not be written there."""
    try:
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        out.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(out if out.exists() else out.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror}", "name another file") from error


async def evaluate(config: RlxConfig, source: str) -> tuple[dict[str, float], list[dict]]:
    """Validation metrics of a model on the configuration's validation prompts, and every answer."""
    from verl_core.controller.run import Generation

    folder, checkpoint, model = _locate(source, config.model)
    config = replace(config, model=model)
    async with AsyncExitStack() as stack:
        generation = Generation(config, folder, blank=checkpoint is not None)
        prompts = generation.val_prompts()
        if prompts is None:
            raise UserError("no prompts to evaluate on", "give --data FILE")
        await generation.start(stack)
        if checkpoint is not None:
            await generation.actor.load(str(checkpoint))
        await generation.rollout.push_weights(0)
        metrics, groups = await generation.validator(prompts).run()
    answers = [
        {"prompt": row.prompt, **{k: v for k, v in asdict(t).items() if k in ("sample", "reward", "finish")}, **t.meta}
        for row, group in zip(prompts.take(range(len(groups))), groups, strict=True)
        for t in group
    ]
    return metrics, answers


def _locate(source: str, model: ModelConfig) -> tuple[str, Path | None, ModelConfig]:
    """The Hugging Face folder of architecture and tokenizer, the checkpoint whose weights to load over it, and the
    model's settings with the adapter that this checkpoint has."""
    from verl_core.checkpoint.adapter import base_folder, settings_of
    from verl_core.checkpoint.find import find_checkpoint, require_undamaged
    from verl_core.models.adapter_folder import is_adapter
    from verl_core.models.pretrained import resolve

    path = Path(source).expanduser()
    if path.is_dir() and not (path / "config.json").exists():
        checkpoint = find_checkpoint(path)
        require_undamaged(checkpoint, ("actor/",))
        trained = checkpoint / "actor" / "weights"
        folder = base_folder(checkpoint, "actor") if is_adapter(trained) else checkpoint / "actor" / "huggingface"
        return str(folder), checkpoint, settings_of(trained, model)
    if model.lora_adapter_path is None:  # a fresh adapter would change nothing
        model = replace(model, lora_rank=0)
    return str(resolve(source)), None, model


if __name__ == "__main__":
    sys.exit(run_job(main))
