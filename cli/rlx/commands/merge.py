"""`rlx merge`: become the job that turns a checkpoint into a Hugging Face model folder."""

import re
from enum import StrEnum
from pathlib import Path

import typer

from rlx import jobs, run_checkpoints
from rlx.arguments import DRY_RUN_OPTION, JSON_OPTION, VERBOSE_OPTION, existing, refuse_empty
from verl_core.config.errors import UserError
from verl_core.config.files import user_path
from verl_core.config.urls import is_url

JOB = "verl_core.checkpoint.merge_job"
REVERSE_JOB = "verl_core.checkpoint.reverse_job"
PUSH_JOB = "verl_core.checkpoint.push_job"
EXTRAS = ("fsdp",)
SIGNS = (
    "manifest.json", "global_step*", "checkpoints/global_step_*", "latest*", "*.pt", "actor/*.pt", "critic/*.pt",
    "fsdp_config.json", "*/fsdp_config.json", ".metadata", "*/.metadata", "*.distcp", "ckpt_contents.json",
    "*/ckpt_contents.json", "adapter_config.json",
)  # fmt: skip
"""What some checkpoint has in its folder; which one it is, and what is wrong with a broken one, is the job's to say."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Dtype(StrEnum):
    keep = "keep"
    bf16 = "bf16"
    fp32 = "fp32"


class Verify(StrEnum):
    none = "none"
    tensors = "tensors"
    logits = "logits"


class Role(StrEnum):
    actor = "actor"
    critic = "critic"
    reward_model = "reward_model"


class Lora(StrEnum):
    fold = "fold"
    adapter = "adapter"


@app.command()
def merge(
    source: str = typer.Argument(
        ...,
        metavar="SOURCE",
        help="A run directory (its newest whole checkpoint), one global_step_N, the URL of either, or a checkpoint of "
        "another program.",
    ),
    out: str | None = typer.Option(
        None, "--out", metavar="DIR", help="Folder to write; must be new or empty.", show_default=False
    ),
    dtype: Dtype = typer.Option(Dtype.keep, help="Number format of the written weights."),
    role: Role = typer.Option(Role.actor, help="Whose weights."),
    lora: Lora = typer.Option(
        Lora.fold, help="Of a run with an adapter: a whole model with the adapter folded in, or the adapter for peft."
    ),
    base: str | None = typer.Option(
        None, metavar="MODEL", help="The model that training started from; a merged model equal to it is an error."
    ),
    lora_alpha: float | None = typer.Option(
        None, metavar="ALPHA", help="Of an adapter in another program's checkpoint that does not tell it."
    ),
    shard_size: str | None = typer.Option(
        None, metavar="SIZE", help="Largest file to write, such as 500MB. Default: 4GiB.", show_default=False
    ),
    verify: Verify | None = typer.Option(
        None,
        help="How the result is compared with the source: names and shapes alone, every value, or the logits too. "
        "Default: logits up to 1 GiB, else tensors.",
        show_default=False,
    ),
    reverse: bool = typer.Option(
        False,
        "--reverse",
        help="SOURCE is a Hugging Face folder or its URL; --out becomes a checkpoint of step 0 that starts a run.",
    ),
    push: str | None = typer.Option(
        None,
        metavar="REPO",
        help="Upload the folder to this repository of the Hugging Face hub, [NAMESPACE/]NAME. Without --out: SOURCE, "
        "a folder that was merged before.",
    ),
    revision: str | None = typer.Option(None, metavar="BRANCH", help="Branch to push to. Default: main."),
    private: bool | None = typer.Option(
        None, "--private/--public", help="Who may see a repository that is made. Default: as the hub does it."
    ),
    allow_unchanged: bool = typer.Option(False, "--allow-unchanged", help="Take a model that equals its base."),
    trust_remote_code: bool = typer.Option(
        False, "--trust-remote-code", help="Run model code that lies in a folder which rlx did not write."
    ),
    as_json: bool = JSON_OPTION,
    dry_run: bool = DRY_RUN_OPTION,
    verbose: bool = VERBOSE_OPTION,
) -> None:
    """Turn a checkpoint into a Hugging Face model folder.

    The folder loads with AutoModelForCausalLM.from_pretrained, and rlx eval and every inference engine take it. A
    critic's, and a reward model's made from pairs, is a token classifier with one output.

    Example: `rlx merge runs/smoke/smoke-1 --out smoke-model`, and `--push me/smoke-model` to have it on the hub.
    """
    if is_url(source) and out is None and push is not None:
        raise UserError(f"{source}: --push without --out takes a folder of this machine", "copy it here, or add --out")
    if not is_url(source):
        source = str(existing(Path(source), "SOURCE"))
    for name, given in (("--push", push), ("--base", base), ("--revision", revision)):
        refuse_empty(given, name)
    of = jobs.options(role=role if role is not Role.actor else None, trust_remote_code=trust_remote_code)
    how = jobs.options(
        dtype=dtype if dtype is not Dtype.keep else None,
        lora=lora if lora is not Lora.fold else None,
        base=base,
        lora_alpha=lora_alpha,
        max_file_bytes=_bytes(shard_size) if shard_size is not None else None,
        verify=verify,
        allow_unchanged=allow_unchanged,
    )
    where = jobs.options(push=push, revision=revision, private=private, public=private is False)
    said = jobs.options(json=as_json, verbose=verbose)
    if where and push is None:
        raise UserError("--revision and --private say where to push, and there is no --push", "add --push REPO")
    if out is None:
        if push is None or of or how or reverse:
            raise typer.BadParameter("is missing: the folder to write", param_hint="--out")
        jobs.become(PUSH_JOB, [source, *where, *said], EXTRAS, dry_run, as_json)
        return
    if is_url(out):
        raise UserError(f"--out {out}: it is written to a disk", "name a folder of this machine, and copy that")
    target = user_path(out, "--out")
    on_a_store = run_checkpoints.extras_of(source)
    if not reverse and on_a_store is None and not _may_hold_one(Path(source)):
        raise UserError(f"{source} holds no checkpoint", "name a run directory or one of its checkpoints/global_step_N")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        there = f", or push what is there: rlx merge {target} --push {push}" if push else ""
        raise UserError(
            f"--out {target} exists and is not an empty folder", f"choose another folder, or empty this one{there}"
        )
    if reverse and (how or where):
        raise UserError(
            "--reverse copies a model as it is, and takes no option that says how to change, compare or push it",
            "leave out all but --out, --role, --trust-remote-code, --json and --dry-run",
        )
    job = REVERSE_JOB if reverse else JOB
    extras = sorted({*EXTRAS, *(on_a_store or ())})
    jobs.become(job, [source, "--out", str(target), *of, *how, *where, *said], extras, dry_run, as_json)


def _may_hold_one(source: Path) -> bool:
    """Whether the job could find a checkpoint there."""
    return source.resolve().name.startswith("global_step_") or any(any(source.glob(sign)) for sign in SIGNS)


def _bytes(size: str) -> int:
    """The number of bytes in 500MB, 4GiB, 10000. UserError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", size.strip())
    value = float(match[1]) * (1024 if match[3] else 1000) ** " kMGT".index(match[2] or " ") if match else 0
    if value < 1:
        raise UserError(f"--shard-size {size} is no size", "write it as 500MB or 4GiB")
    return int(value)
