"""`python -m verl_core.checkpoint.push_job`: the job behind `rlx merge FOLDER --push REPO`."""

import json
import sys
from pathlib import Path

from verl_core.checkpoint.merge_card import Origin
from verl_core.checkpoint.merge_options import add_push, job_parser, push_target
from verl_core.checkpoint.merge_push import check_push, push
from verl_core.checkpoint.model_folder import ModelFolder
from verl_core.config.errors import UserError
from verl_core.config.process import run_job
from verl_core.models.adapter_folder import is_adapter, read_config


def main(arguments: list[str]) -> int:
    """Pushes a folder that was merged before, as it is, and says on stdout what the hub made of it."""
    parser = job_parser("rlx merge FOLDER --push", "Push a merged folder.", "Hugging Face folder, or an adapter's")
    add_push(parser, required=True)
    options = parser.parse_args(arguments)
    folder: Path = options.source
    _require_model(folder)
    to = check_push(push_target(options))
    pushed = to.report() if options.dry_run else push(folder, to, Origin())
    if options.json:
        print(json.dumps({"folder": str(folder), "push": pushed}))
    else:
        print(f"would push {folder} to {to}" if options.dry_run else f"pushed {folder} to {to}: {pushed['url']}")
    return 0


def _require_model(folder: Path) -> None:
    """Raises UserError for a folder that is no whole model and no adapter."""
    if is_adapter(folder):
        read_config(folder)
    elif (folder / "config.json").is_file():
        ModelFolder(folder)
    else:
        raise UserError(f"{folder} is no merged model", f"merge it first: rlx merge {folder} --out DIR --push REPO")


if __name__ == "__main__":
    sys.exit(run_job(main))
