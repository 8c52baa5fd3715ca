"""`rlx plan`: what a run needs on each GPU and how long a step takes, without a GPU, weights or a network."""

from pathlib import Path

import typer

from rlx import ui
from rlx.arguments import FILE_OPTION, JSON_OPTION, VERBOSE_OPTION, WORDS_HELP, resolve_words

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def plan(
    words: list[str] = typer.Argument(None, metavar="PROFILE | KEY=VALUE", help=WORDS_HELP),
    gpu: str = typer.Option(None, "--gpu", help="The card to plan for: H200, A100, ..., or a size such as 24GB."),
    file: Path = FILE_OPTION,
    as_json: bool = JSON_OPTION,
    verbose: bool = VERBOSE_OPTION,
) -> None:
    """Estimate memory, traffic and time of a run, and say whether it fits.

    Needs no GPU, weights or network: model.path may be a well-known model's name or a folder with a config.json.
    A plan that does not fit ends with 0 and names the cheapest changes that make it fit; sizes that do not divide are
    an error. Without --gpu it is for this machine's GPU, or for an H200 where there is none.

    Examples: `rlx plan gsm8k-ppo --gpu 24GB`, `rlx plan 256-gpu-grpo`.
    """
    from rlx import plan_view
    from verl_core import planning
    from verl_core.planning.plan import gpu_for

    resolved = resolve_words(words or [], file)
    card, reason = gpu_for(resolved.config, gpu)
    planned = planning.plan(resolved.config, card)
    if as_json:
        ui.out_json({"profile": resolved.profile, "gpu_chosen": reason, **planned.values()})
    else:
        plan_view.show(planned, resolved.profile, reason)
