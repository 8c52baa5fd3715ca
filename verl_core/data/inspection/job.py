"""`python -m verl_core.data.inspection.job show|stats|check`: looks at data files. What `rlx data` becomes."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.process import run_job
from verl_core.config.prompt_files import training_files
from verl_core.config.schema import RlxConfig
from verl_core.config.write import load
from verl_core.data.inspection import report
from verl_core.data.inspection.faults import faults_of, overlap
from verl_core.data.inspection.figures import figures
from verl_core.data.inspection.subject import Subject, form_in, form_of_algorithm, tokenizer_of
from verl_core.data.inspection.view import view
from verl_core.data.reading import Split
from verl_core.data.sources import Files

talk = Console(stderr=True)
NO_TOKENIZER = "no model is named, so lengths are characters: give a profile, or --model PATH"


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    return args.run(args, Opener(args))


class Opener:
    """Opens files under the job's configuration; the tokenizer is loaded once."""

    def __init__(self, args: argparse.Namespace):
        self.config = effective(load(args.config)) if args.config else RlxConfig()
        self.by_columns = args.by_columns
        self.tokenizer = None if args.no_tokenizer else tokenizer_of(self.config)
        if self.tokenizer is None:
            talk.print(NO_TOKENIZER, soft_wrap=True)

    def open(self, files: Files, split: Split) -> Subject:
        form = form_in(files, split, self.config) if self.by_columns else form_of_algorithm(self.config)
        return Subject(files, split, self.config, self.tokenizer, form)


def show(args: argparse.Namespace, opener: Opener) -> int:
    subject = opener.open(args.files, args.split)
    count = len(subject.rows)
    if args.row is not None and args.row > count:
        raise UserError(f"--row {args.row}: there are {count} rows", "rows count from 1, over all files")
    first = 0 if args.row is None else args.row - 1
    shown = view(subject, range(first, min(first + (args.n if args.row is None else 1), count)))
    _print(args, shown, report.rows)
    return 0


def stats(args: argparse.Namespace, opener: Opener) -> int:
    against = opener.open(args.against, "val") if args.against else None
    subject = opener.open(args.files, args.split)
    limit = args.max_prompt_length or opener.config.data.max_prompt_length
    _print(args, figures(subject, limit, against), report.figures)
    return 0


def check(args: argparse.Namespace, opener: Opener) -> int:
    """Of files without a configuration those of one split may be given alone."""
    data, alone = opener.config.data, args.by_columns and args.val
    files: dict[Split, Files | None] = {
        "train": args.files or (None if alone else training_files(data)),
        "val": args.val or (None if args.files else data.val_files or None),
    }
    subjects = {split: opener.open(named, split) for split, named in files.items() if named is not None}
    faults = [fault for subject in subjects.values() for fault in faults_of(subject)]
    if len(subjects) == len(files):
        faults += overlap(subjects["train"], subjects["val"])
    found: dict[str, Any] = {
        "rows": {split: len(subject.rows) for split, subject in subjects.items()},
        "counts": dict(Counter(fault.kind for fault in faults)),
        "faults": [asdict(fault) for fault in faults],
    }
    _print(args, found, report.faults)
    return 1 if faults else 0


def _print(args: argparse.Namespace, found: Any, plain: Callable[[Any], str]) -> None:
    print(json.dumps(found, ensure_ascii=False, default=repr) if args.json else plain(found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rlx data", description="Look at data files.")
    commands = parser.add_subparsers(required=True)
    showing = commands.add_parser("show", help="rows as they will be sent")
    showing.add_argument("--row", type=int, metavar="N", help="this row, counted from 1 over all files")
    showing.add_argument("-n", type=int, default=3, help="the first N rows")
    counting = commands.add_parser("stats", help="rows, data sources, lengths, duplicates")
    counting.add_argument("--against", action="append", metavar="FILE", help="count the prompts that this one has, too")
    counting.add_argument("--max-prompt-length", type=int, metavar="N", help="tokens; default: the configuration's")
    checking = commands.add_parser("check", help="what a run would stop at, or be misled by")
    checking.add_argument("--val", action="append", metavar="FILE", help="validation prompts")
    for command, run in ((showing, show), (counting, stats), (checking, check)):
        command.set_defaults(run=run)
        command.add_argument("files", nargs="*" if command is checking else "+", metavar="FILE")
        command.add_argument("--config", type=Path, metavar="FILE", help="a run's config.yaml")
        command.add_argument("--no-tokenizer", action="store_true", help="count characters")
        command.add_argument("--by-columns", action="store_true", help="take the form of rows that their columns show")
        command.add_argument("--json", action="store_true", help="print one JSON value")
        command.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
        if command is not checking:
            command.add_argument("--split", choices=("train", "val"), default="train", help="of a folder")
    return parser


if __name__ == "__main__":
    run_job(main)
