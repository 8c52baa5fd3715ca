"""`rlx prepare`: become the job that fetches or makes a data set and writes it as Parquet."""

import os
from pathlib import Path
from typing import Any

import typer

from rlx import jobs, ui
from rlx.arguments import DRY_RUN_OPTION, JSON_OPTION, VERBOSE_OPTION, existing
from rlx.commands import prepare_list
from verl_core.config import dataset_options

JOB = "verl_core.data.prepare.job"
EXTRAS = ("fsdp",)

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def prepare(
    ctx: typer.Context,
    name: str = typer.Argument(None, metavar="NAME", help="The data set, for example gsm8k; without one, the table."),
    listing: bool = typer.Option(False, "--list", help="Show every data set: rows, licence, scorer, own options."),
    source: Path = typer.Option(None, help="Folder or file with the data set's own rows; default: the hub."),
    out: Path = typer.Option(None, help="Folder for train.parquet and test.parquet; default: ~/data/NAME."),
    limit: int = typer.Option(None, min=1, help="Keep only the first this many rows of each file."),
    validate: bool = typer.Option(False, "--validate", help="Read what was written again and check every row."),
    as_json: bool = JSON_OPTION,
    dry_run: bool = DRY_RUN_OPTION,
    verbose: bool = VERBOSE_OPTION,
) -> None:
    """Fetch or make a data set and write it as Parquet.

    The columns are veRL's, and the profiles look for the files in the default place. What one data set alone takes is
    an option too, after its name; `rlx prepare --list` shows them. Where the files are there already, --validate
    without --source only checks them.

    Examples: `rlx prepare gsm8k`, `rlx prepare hh-rlhf --form pairs --source downloads/`.
    """
    if name is None or listing:
        prepare_list.show(as_json)
        return
    facts = dataset_options.facts(dataset_options.find(name)[0])  # what is unknown ends here, without an environment
    options = dataset_options.read(name, ctx.args)
    if source is not None:
        existing(source, "--source")
    words = jobs.options(source=source, out=out, limit=limit, validate=validate, json=as_json)
    words = [name, *words, *ctx.args, *(["-v"] if verbose else [])]
    extras = (*EXTRAS, *facts.extras)
    if not dry_run:
        os.environ.setdefault("PYTHONHASHSEED", "0")  # a generator may go through a set: its order is to be the same
        jobs.become(JOB, words, extras)
    rows = dataset_options.rows(name, options)
    folder = (out or Path("~/data") / dataset_options.folder(name, options)).expanduser()
    plan = {
        "dataset": name,
        "origin": str(source or (f"hub:{facts.hub}" if facts.hub else "made here")),
        "out": str(folder),
        "files": {split: {"file": f"{split}.parquet", "rows": min(n, limit or n)} for split, n in rows.items()},
    }
    _say_plan(plan | jobs.planned(JOB, words, extras), as_json)


def _say_plan(plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        ui.out_json(plan)
        return
    ui.out(f"{plan['dataset']} from {plan['origin']}")
    for split, file in plan["files"].items():
        ui.out(f"{split}: up to {file['rows']:,} rows  {Path(plan['out']) / file['file']}")
    ui.out(plan["launch"])
