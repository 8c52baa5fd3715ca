"""`rlx prepare`: become the job that fetches a dataset and writes it as Parquet."""

from pathlib import Path

import typer

from rlx import jobs
from rlx.arguments import DRY_RUN_OPTION, JSON_OPTION, VERBOSE_OPTION, existing
from verl_core.config import catalogue

JOB = "verl_core.data.prepare.job"
EXTRAS = ("fsdp",)

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def prepare(
    name: str = typer.Argument(..., metavar="NAME", help="The dataset, for example gsm8k."),
    source: Path = typer.Option(None, help="Folder with the dataset's own files (jsonl, jsonl.gz); default: the hub."),
    out: Path = typer.Option(None, help="Folder for train.parquet and test.parquet; default: ~/data/NAME."),
    limit: int = typer.Option(None, min=1, help="Keep only the first this many rows of each file."),
    as_json: bool = JSON_OPTION,
    dry_run: bool = DRY_RUN_OPTION,
    verbose: bool = VERBOSE_OPTION,
) -> None:
    """Fetch a dataset and write it as Parquet.

    The columns are veRL's, and the profiles look for the files in the default place.

    Examples: `rlx prepare gsm8k`, `rlx prepare gsm8k --source downloads/ --out data/`.
    """
    catalogue.entry("dataset", name)  # an unknown name is an error before an environment is made for it
    if source is not None:
        existing(source, "--source")
    words = jobs.options(source=source, out=out, limit=limit, json=as_json)
    jobs.become(JOB, [name, *words, *(["-v"] if verbose else [])], EXTRAS, dry_run, as_json)
