"""`python -m verl_core.checkpoint.merge_job`: the job behind `rlx merge`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from verl_core.checkpoint.merge import check_contents, merge, plan_merge
from verl_core.checkpoint.merge_card import Origin, origin_of
from verl_core.checkpoint.merge_options import ROLES, add_push, job_parser, push_target
from verl_core.checkpoint.merge_push import check_push, push
from verl_core.checkpoint.merge_verify import chosen_verify
from verl_core.checkpoint.progress_bar import byte_bar
from verl_core.checkpoint.safetensors_stream import MAX_FILE_BYTES
from verl_core.checkpoint.target import check_space
from verl_core.config.process import run_job


def main(arguments: list[str]) -> int:
    """Merges and says what was written, on stdout; the progress bar is on stderr."""
    options = _parser().parse_args(arguments)
    to = check_push(push_target(options)) if options.push else None
    plan = plan_merge(
        options.source,
        options.out,
        options.dtype,
        options.role,
        options.lora,
        options.base,
        options.lora_alpha,
        options.allow_unchanged,
        options.trust_remote_code,
    )
    origin = origin_of(plan.checkpoint, plan.step, options.base, plan.extra.get("source")) if to else Origin()
    how = chosen_verify(plan.content, options.verify)
    check_space(plan.out, plan.bytes)  # before minutes of reading
    if not options.dry_run:
        with byte_bar() as bar:
            if plan.checked_bytes:
                checking = bar.add_task("checking", total=plan.checked_bytes)
                check_contents(plan, lambda done: bar.advance(checking, done))
            writing = bar.add_task("writing", total=plan.bytes)
            merge(plan, lambda done: bar.advance(writing, done), options.max_file_bytes, how)
    report = plan.report() | {"verify": how}
    if not options.json:
        verb = "would write" if options.dry_run else "wrote"
        print(
            f"{verb} {report['out']}: {_origin(report)}, {report['tensors']} tensors, "
            f"{report['bytes']:,} bytes, {report['dtype']}" + _of_adapter(report)
        )
    if to is not None:
        pushed = to.report() if options.dry_run else push(plan.out, to, origin)
        report["push"] = pushed
        if not options.json:
            print(f"would push it to {to}" if options.dry_run else f"pushed it to {to}: {pushed['url']}")
    if options.json:
        print(json.dumps(report))
    return 0


def _origin(report: dict[str, Any]) -> str:
    step = "" if report["step"] is None else f" of step {report['step']}"
    return f"{report['role']}{step}" + (f" ({report['source']})" if "source" in report else "")


def _of_adapter(report: dict[str, Any]) -> str:
    if report.get("lora") == "fold":
        kept = f", {report['kept']:.1%} of its change survives rounding" if "kept" in report else ""
        return f"; its adapter is folded into {report['base']}{kept}"
    return "; an adapter for peft" if report.get("lora") == "adapter" else ""


def _parser() -> argparse.ArgumentParser:
    about = "Make a Hugging Face folder from a checkpoint."
    parser = job_parser("rlx merge", about, "run directory, checkpoints folder, global_step_N, or foreign")
    parser.add_argument("--out", type=Path, required=True, help="folder to make; must not hold anything")
    parser.add_argument("--dtype", choices=["keep", "bf16", "fp32"], default="keep", help="dtype of the weights")
    parser.add_argument("--role", choices=ROLES, default="actor", help="which model of the run")
    parser.add_argument("--lora", choices=["fold", "adapter"], default="fold", help="what becomes of an adapter")
    parser.add_argument("--base", help="model that training started from")
    parser.add_argument("--lora_alpha", type=float, help="of a foreign adapter that does not tell it")
    parser.add_argument("--max_file_bytes", type=int, default=MAX_FILE_BYTES, help="largest file to write")
    parser.add_argument("--verify", choices=["none", "tensors", "logits"], help="how to compare with the source")
    parser.add_argument("--allow_unchanged", action="store_true", help="take a model that equals its base")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code in a foreign checkpoint")
    add_push(parser)
    return parser


if __name__ == "__main__":
    sys.exit(run_job(main))
