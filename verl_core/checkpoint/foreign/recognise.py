"""Which program wrote a folder, told by what is in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from verl_core.checkpoint.foreign import dcp, deepspeed, megatron, peft_folder, verl_fsdp
from verl_core.checkpoint.foreign.source import ForeignSource, SourceOptions
from verl_core.config.errors import UserError


@dataclass(frozen=True)
class Format:
    """A kind of checkpoint that can be read."""

    name: str
    looks_for: str
    """The files by which it is known."""
    open: Callable[[Path, SourceOptions], ForeignSource | None]
    """The source, or None where the folder is of another kind. It takes the folder a user may mean: the files' own, the
    step's, the run's."""


FORMATS = [
    Format("veRL FSDP", "model_world_size_W_rank_R.pt", verl_fsdp.open_source),
    Format("veRL Megatron", "ckpt_contents.json", megatron.open_source),
    Format("peft", "adapter_config.json", peft_folder.open_source),  # before those whose optimizer may lie below it
    Format("DeepSpeed ZeRO", "latest, global_stepN/*_optim_states.pt", deepspeed.open_source),
    Format("torch distributed", ".metadata, *.distcp", dcp.open_source),
]
"""In the order they are tried."""


def recognise(folder: Path, options: SourceOptions) -> ForeignSource | None:
    """The source in `folder`, None where no format is known. Raises UserError that names every missing or broken piece
    of one that is."""
    for known in FORMATS:
        if source := known.open(folder, options):
            if faults := source.faults():
                raise UserError(
                    f"{source.folder} is not a whole {source.kind} checkpoint: " + "; ".join(faults),
                    "copy the missing files there, or choose another step",
                )
            return source
    return None


def looked_for() -> str:
    """What `recognise` looks for, for the message that nothing was found."""
    return "; ".join(f"{known.looks_for} ({known.name})" for known in FORMATS)
