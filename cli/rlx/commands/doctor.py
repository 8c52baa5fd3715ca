"""`rlx doctor`: check this machine."""

import dataclasses

import typer

from rlx import checkup, ui
from rlx.arguments import JSON_OPTION
from verl_core.config.errors import MachineError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def doctor(as_json: bool = JSON_OPTION) -> None:
    """Check this machine and say how to mend what is wrong.

    Looks at Python, uv, the lock, RLX_PYTHON, disk space, shared memory, the GPU driver, git and left-over Ray
    processes. Exits with 4 when a check fails.
    """
    found = list(checkup.findings())
    if as_json:
        ui.out_json([dataclasses.asdict(finding) for finding in found])
    else:
        for finding in found:
            ui.out(f"{finding.state:<4}  {finding.check:<12}  {finding.found}")
            if finding.fix:
                ui.out(f"      {'':<12}  fix: {finding.fix}")
    failed = [finding.check for finding in found if finding.state == "fail"]
    if failed and as_json:
        raise typer.Exit(MachineError.exit_code)  # the JSON above says it all
    if failed:
        raise MachineError(f"this machine fails: {', '.join(failed)}", "follow the fix lines above")
