"""What `rlx eval` becomes: `python -m verl_core.controller.eval_job SOURCE... --config FILE [--config FILE]
[--data FILE] [--seed N] [--out FILE] [--json] [-v]`.

SOURCE is a Hugging Face folder or hub name, a run directory (its newest whole checkpoint), or a checkpoint; there is
one --config for each. Answers are generated and scored by the same parts that training validates with.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import replace
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING

from verl_core.config import garbage
from verl_core.config.effective import effective, uses_rollout
from verl_core.config.errors import UserError
from verl_core.config.model_roles import teachers, trains_process_rewards
from verl_core.config.process import run_job
from verl_core.config.schema import RlxConfig
from verl_core.config.write import load
from verl_core.controller.eval_answers import AnswerFile, Row, answer_in, row_of
from verl_core.controller.eval_report import Progress, print_differences, print_statistics, talk
from verl_core.controller.eval_statistics import Groups, differences, statistics

if TYPE_CHECKING:
    from verl_core.controller.eval_source import Candidate


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    with _answer_file(args.out) as file:  # refused before torch is loaded, and minutes spent on answers to be lost
        from transformers.utils import logging as hf_logging

        from verl_core.controller.eval_source import find

        garbage.look_as_usual()
        hf_logging.disable_progress_bar()
        configs = [_generation_only(load(path), args.data) for path in args.config]
        seed = configs[0].trainer.seed if args.seed is None else args.seed
        candidates = [find(source, config, seed) for source, config in zip(args.sources, configs, strict=True)]
        _require_different(candidates)
        groups = asyncio.run(evaluate(candidates, seed, file))
    _report(candidates, groups, seed, args.json)
    return 0


def _answer_file(path: Path | None) -> AbstractContextManager[AnswerFile | None]:
    return nullcontext() if path is None else AnswerFile(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m verl_core.controller.eval_job")
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--config", type=Path, action="append", required=True, help="one for each source")
    parser.add_argument("--data", action="append", help="prompts instead of data.val_files; may be repeated")
    parser.add_argument("--seed", type=int, help="of the answers' draws; default: trainer.seed")
    parser.add_argument("--out", type=Path, help="keep every answer with its score, one JSON object a line")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
    return parser


def _generation_only(config: RlxConfig, data: list[str] | None) -> RlxConfig:
    """The effective configuration without critic, reference and run, with `data` for the prompts where it is given."""
    if data:
        config = replace(config, data=replace(config.data, val_files=data))
    others = teachers(config) or trains_process_rewards(config)
    if others or not uses_rollout(config):  # learns from models or a data set; what it is asked now, it answers alone
        config = replace(config, algorithm=replace(config.algorithm, name="grpo"))
    config = effective(config)
    return replace(
        config,
        actor=replace(config.actor, use_kl_loss=False),
        algorithm=replace(config.algorithm, use_kl_in_reward=False),
        critic=replace(config.critic, enable=False),
        trainer=replace(config.trainer, experiment_name=None),
    )


def _require_different(candidates: Sequence[Candidate]) -> None:
    """Two names of the same weights would be one line in a file, and a difference of nothing."""
    seen: dict[str, Candidate] = {}
    for candidate in candidates:
        if other := seen.get(candidate.depends["model"]):
            raise UserError(f"{other.label} and {candidate.label} are the same weights", "name two that differ")
        seen[candidate.depends["model"]] = candidate


async def evaluate(candidates: Sequence[Candidate], seed: int, file: AnswerFile | None) -> list[Groups]:
    """The scored answers of each candidate, n a prompt, in the order of its prompts. Those in `file` are not generated
    again; new ones are in it as soon as their chunk is done."""
    there: list[list[list[Row]]] = file.resume(candidates) if file else [[] for _ in candidates]
    results: list[Groups] = []
    for candidate, groups in zip(candidates, there, strict=True):
        if groups:
            talk.print(f"{candidate.label}: {len(groups)} of {len(candidate.prompts)} questions are answered already")
        if len(groups) < len(candidate.prompts):
            await _answer(candidate, groups, seed, file)
        results.append([[answer_in(row) for row in group] for group in groups])
    return results


async def _answer(candidate: Candidate, groups: list[list[Row]], seed: int, file: AnswerFile | None) -> None:
    """Answers the prompts after the first len(groups); extends `groups`."""
    generation, left = candidate.generation, candidate.prompts[len(groups) :]
    async with AsyncExitStack() as stack:
        await generation.start(stack)
        generation.scorers.check({row.data_source for row in candidate.prompts})
        if candidate.checkpoint is not None:
            await generation.actor.load(str(candidate.checkpoint))
        await generation.rollout.push_weights(0)
        generation.maker.seed = seed
        validator = generation.validator(candidate.dataset)
        progress = stack.enter_context(Progress(candidate.label, len(candidate.prompts), len(groups)))
        for prompts in batched(left, candidate.chunk):
            made = await validator.answer(prompts)
            new = [[row_of(t, p, candidate, seed) for t in own] for p, own in zip(prompts, made, strict=True)]
            if file:
                file.add(new)
            groups += new
            progress.advance(len(prompts), sum(row["tokens"] for group in new for row in group))


def _report(candidates: Sequence[Candidate], groups: Sequence[Groups], seed: int, as_json: bool) -> None:
    from verl_core.controller.validate import validation_metrics

    base, others = candidates[0], candidates[1:]
    tables = [statistics(own, seed) for own in groups]
    against = [differences(groups[0], own, seed) for own in groups[1:]]
    if not as_json:
        for candidate, table in zip(candidates, tables, strict=True):
            print_statistics(candidate.label, table)
        for candidate, table in zip(others, against, strict=True):
            print_differences(candidate.label, base.label, table)
        return
    scored = [
        {
            "source": candidate.name,
            "checkpoint": candidate.place,
            "answers": sum(map(len, own)),
            "metrics": validation_metrics(own, seed),
            "statistics": table,
        }
        for candidate, own, table in zip(candidates, groups, tables, strict=True)
    ]
    pairs = [{"of": c.name, "to": base.name, "difference": d} for c, d in zip(others, against, strict=True)]
    print(json.dumps({"sources": scored, "differences": pairs} if pairs else scored[0]))


if __name__ == "__main__":
    sys.exit(run_job(main))
