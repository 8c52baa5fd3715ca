"""`python -m verl_core.checkpoint.reverse_job`: the job behind `rlx merge --reverse`."""

import argparse
import json
import sys
from pathlib import Path

from verl_core.checkpoint.merge_options import ROLES, job_parser
from verl_core.checkpoint.progress_bar import byte_bar
from verl_core.checkpoint.reverse import plan_reverse, reverse
from verl_core.config.process import run_job


def main(arguments: list[str]) -> int:
    """Makes the checkpoint and says what was written, on stdout; the progress bar is on stderr."""
    options = _parser().parse_args(arguments)
    plan = plan_reverse(options.source, options.out, options.role, options.trust_remote_code)
    if not options.dry_run:
        with byte_bar() as bar:
            writing = bar.add_task("writing", total=plan.bytes)
            reverse(plan, lambda done: bar.advance(writing, done))
    report = plan.report()
    if options.json:
        print(json.dumps(report))
    else:
        verb = "would write" if options.dry_run else "wrote"
        print(
            f"{verb} {report['out']}: {report['role']} of step 0, {report['tensors']} tensors, "
            f"{report['bytes']:,} bytes, {report['dtype']}; a checkpoint"
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    about = "Make a checkpoint of a model's folder."
    parser = job_parser("rlx merge --reverse", about, "Hugging Face folder with config.json and safetensors weights")
    parser.add_argument("--out", type=Path, required=True, help="folder to make; must not hold anything")
    parser.add_argument("--role", choices=ROLES, default="actor", help="which model of a run it is to be")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code that lies in the folder")
    return parser


if __name__ == "__main__":
    sys.exit(run_job(main))
