"""`python -m verl_core.data.prepare.job NAME`: prepares one data set. What `rlx prepare` becomes."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from verl_core.config import catalogue
from verl_core.config.process import run_job
from verl_core.data.prepare.writer import write

talk = Console(stderr=True)


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    prepare = catalogue.implementation("dataset", args.name)
    out = (args.out or Path("~/data") / args.name).expanduser()
    if args.dry_run:
        _report(args, _plan(args, out))
        return 0
    began = time.perf_counter()
    with Progress(console=talk, transient=True, disable=not talk.is_terminal) as progress:
        reading = progress.add_task(f"reading {args.name}", total=None)
        prepared = prepare(args.source and args.source.expanduser(), args.limit)
        progress.update(reading, total=1, completed=1)
        writing = progress.add_task(f"writing {out}", total=len(prepared.splits))
        manifest = write(args.name, prepared, out, lambda split: progress.advance(writing))
    _report(args, {**manifest, "out": str(out), "seconds": round(time.perf_counter() - began, 3)})
    return 0


def _plan(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    missing = args.source is not None and not args.source.expanduser().is_dir()
    if missing:
        talk.print(f"warning: --source {args.source} is no folder", soft_wrap=True)
    files = {split: {"file": f"{split}.parquet"} for split in ("train", "test")}
    return {"dataset": args.name, "out": str(out), "files": files, "dry_run": True}


def _report(args: argparse.Namespace, result: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(result))
        return
    for split, file in result["files"].items():
        rows = f"{file['rows']:,} rows" if "rows" in file else "would be written"
        print(f"{split}: {rows}  {Path(result['out']) / file['file']}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rlx prepare", description="Fetch a data set and write it as Parquet.")
    parser.add_argument("name", metavar="NAME", help="the data set: " + ", ".join(catalogue.names("dataset")))
    parser.add_argument(
        "--source", type=Path, metavar="DIR", help="folder with the data set's own files; default: the hub"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the Parquet files; default: ~/data/NAME")
    parser.add_argument("--limit", type=_positive, metavar="N", help="only the first N rows of each file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of rows from 1")
    return number


if __name__ == "__main__":
    run_job(main)
