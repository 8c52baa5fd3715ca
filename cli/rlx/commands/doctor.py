"""`rlx doctor`: check this machine."""

import dataclasses
from pathlib import Path

import typer

from rlx import checkup, ui
from rlx.arguments import JSON_OPTION, WORDS_HELP, resolve_words
from rlx.checkup.finding import Subject
from verl_core.config.errors import MachineError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def doctor(
    words: list[str] = typer.Argument(None, metavar="PROFILE | KEY=VALUE", help=WORDS_HELP),
    file: Path = typer.Option(None, "--file", "-f", help="Configuration file between the profile and the settings."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Check this machine and say how to mend what is wrong.

    Looks at Python, platform, uv, lock, environment, disks, memory, limits, GPU driver, GPUs, NCCL, network, ports,
    keys, variables and processes that earlier runs left. With a profile, checks for what it asks. Starts and changes
    nothing. Exits with 4 when a check fails; warnings do not count.

    Examples: `rlx doctor`, `rlx doctor gsm8k-ppo cluster.nproc=8`.
    """
    subject = Subject.of(resolve_words(words or [], file)) if words or file else Subject()
    found = list(checkup.findings(subject))
    if as_json:
        ui.out_json([dataclasses.asdict(finding) for finding in found])
    else:
        for finding in found:
            ui.out(f"{finding.state:<4}  {finding.check:<12}  {finding.found}")
            if finding.fix:
                ui.out(f"      {'':<12}  fix: {finding.fix}")
    failed = dict.fromkeys(finding.check for finding in found if finding.state == "fail")
    if failed and as_json:
        raise typer.Exit(MachineError.exit_code)  # the JSON above says it all
    if failed:
        raise MachineError(f"this machine fails: {', '.join(failed)}", "follow the fix lines above")
