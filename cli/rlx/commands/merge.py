"""`rlx merge`: become the job that turns a checkpoint into a Hugging Face model folder."""

from enum import StrEnum
from pathlib import Path

import typer

from rlx import jobs
from rlx.arguments import DRY_RUN_OPTION, JSON_OPTION, VERBOSE_OPTION, existing
from verl_core.config.errors import UserError
from verl_core.config.files import user_path

JOB = "verl_core.checkpoint.merge_job"
EXTRAS = ("fsdp",)

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Dtype(StrEnum):
    keep = "keep"
    bf16 = "bf16"
    fp32 = "fp32"


class Role(StrEnum):
    actor = "actor"
    critic = "critic"
    reward_model = "reward_model"


class Lora(StrEnum):
    fold = "fold"
    adapter = "adapter"


@app.command()
def merge(
    source: Path = typer.Argument(
        ..., metavar="SOURCE", help="A run directory (its newest whole checkpoint) or one global_step_N."
    ),
    out: Path = typer.Option(..., "--out", metavar="DIR", help="Folder to write; must be new or empty."),
    dtype: Dtype = typer.Option(Dtype.keep, help="Number format of the written weights."),
    role: Role = typer.Option(Role.actor, help="Whose weights."),
    lora: Lora = typer.Option(
        Lora.fold, help="Of a run with an adapter: a whole model with the adapter folded in, or the adapter for peft."
    ),
    as_json: bool = JSON_OPTION,
    dry_run: bool = DRY_RUN_OPTION,
    verbose: bool = VERBOSE_OPTION,
) -> None:
    """Turn a checkpoint into a Hugging Face model folder.

    The folder loads with AutoModelForCausalLM.from_pretrained, and rlx eval and every inference engine take it. A
    critic's, and a reward model's made from pairs, is a token classifier with one output.

    Example: `rlx merge runs/smoke/smoke-1 --out smoke-model`.
    """
    source, out = existing(source, "SOURCE"), user_path(out, "--out")
    if not _may_hold_one(source):
        raise UserError(f"{source} holds no checkpoint", "name a run directory or one of its checkpoints/global_step_N")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out} exists and is not an empty folder", "choose another folder, or empty this one")
    words = jobs.options(out=out, dtype=dtype.value, role=role.value, lora=lora.value, json=as_json)
    jobs.become(JOB, [str(source), *words, *(["-v"] if verbose else [])], EXTRAS, dry_run, as_json)


def _may_hold_one(source: Path) -> bool:
    """Whether the job could find a checkpoint there; what is wrong with a broken one is its to say."""
    is_one = source.resolve().name.startswith("global_step_") or (source / "manifest.json").is_file()
    return is_one or any(source.glob("global_step_*")) or any(source.glob("checkpoints/global_step_*"))
