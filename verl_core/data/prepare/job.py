"""`python -m verl_core.data.prepare.job NAME`: prepares one data set. What `rlx prepare` becomes."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from verl_core.config import catalogue, dataset_options
from verl_core.config.process import run_job
from verl_core.data.prepare import manifest as manifests
from verl_core.data.prepare.manifest import Manifest
from verl_core.data.prepare.prepared import Wanted
from verl_core.data.prepare.writer import write

talk = Console(stderr=True)


def main(argv: list[str]) -> int:
    args, own = _parser().parse_known_args(argv)
    options = dataset_options.read(args.name, own)
    wanted = Wanted(args.name, args.source and args.source.expanduser(), args.limit, options)
    out = (args.out or Path("~/data") / dataset_options.folder(args.name, options)).expanduser()
    began = time.perf_counter()
    found = manifests.read(out) if args.validate and args.source is None else None
    result: dict[str, Any] = {"out": str(out)}
    if found is not None and manifests.fits(found, wanted, dataset_options.asked(args.name, own)):
        manifest = found
    else:
        manifest, changed = _prepare(wanted, out)
        result["unchanged"] = not changed
    faults = _validate(manifest, out, result) if args.validate else []
    _report(args.json, {**manifest, **result, "seconds": round(time.perf_counter() - began, 3)})
    for fault in faults:
        talk.print(fault, soft_wrap=True, markup=False, highlight=False)
    return 1 if faults else 0


def _prepare(wanted: Wanted, out: Path) -> tuple[Manifest, bool]:
    entry, _ = dataset_options.find(wanted.name)
    known = None if wanted.limit else sum(dataset_options.facts(entry).rows.values()) or None
    with _bar() as bar:
        reading = bar.add_task(f"reading {wanted.name}", total=known)

        def read(done: int, total: int | None) -> None:
            bar.start()  # only now: the hub's client shows a download by itself
            expected = total or known
            bar.update(reading, completed=done, total=expected if expected and done <= expected else None)

        prepared = catalogue.implementation("dataset", entry.name)(replace(wanted, progress=read))
        writing = bar.add_task(f"writing {out}", total=len(prepared.splits))
        return write(
            wanted,
            prepared,
            out,
            written=lambda split: bar.advance(writing),
            waiting=lambda: talk.print(f"another `rlx prepare` is writing {out}; this one waits", soft_wrap=True),
        )


def _validate(manifest: Manifest, out: Path, result: dict[str, Any]) -> list[str]:
    """What is wrong, a line each; counts and faults go into `result`."""
    from verl_core.data.prepare.validate import validate  # the rules, which preparing alone does not need

    with _bar() as bar:
        bar.start()
        checking = bar.add_task(f"validating {out}", total=sum(f["rows"] for f in manifest["files"].values()))
        outcome = validate(manifest, out, lambda rows: bar.advance(checking, rows))
    result |= {"validated": outcome.counts, "faults": outcome.faults}
    return outcome.faults


@contextmanager
def _bar() -> Iterator[Progress]:
    """A progress bar on a terminal, which appears when it is started and is gone at the end."""
    bar = Progress(console=talk, transient=True, disable=not talk.is_terminal)
    try:
        yield bar
    finally:
        bar.stop()


def _report(as_json: bool, result: dict[str, Any]) -> None:
    if as_json:
        print(json.dumps(result))
        return
    same = ", unchanged" if result.get("unchanged") else ""
    for split, file in result["files"].items():
        print(f"{split}: {file['rows']:,} rows{same}  {Path(result['out']) / file['file']}")
    for note in result.get("notes", ()):
        print(note)
    if counts := result.get("validated"):
        print("validated: " + ", ".join(f"{n:,} {what}" for what, n in counts.items()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rlx prepare", description="Fetch or make a data set and write it as Parquet.", allow_abbrev=False
    )
    parser.add_argument("name", metavar="NAME", help="the data set: " + ", ".join(catalogue.names("dataset")))
    parser.add_argument("--source", type=Path, metavar="PATH", help="folder or file with the data set's own rows")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the Parquet files; default: ~/data/NAME")
    parser.add_argument("--limit", type=_positive, metavar="N", help="only the first N rows of each file")
    parser.add_argument("--validate", action="store_true", help="read what was written again and check every row")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of rows from 1")
    return number


if __name__ == "__main__":
    run_job(main)
