"""A model of an object store on this machine's disk. Apart from `fetch`, as it needs torch, which a job that saves to a
store imports later."""

from pathlib import Path

from verl_core.checkpoint.fetch import copied
from verl_core.checkpoint.huggingface import of_model
from verl_core.checkpoint.model_folder import weight_files
from verl_core.checkpoint.objects import ObjectPath
from verl_core.config.errors import RunError


def fetched_model(model: ObjectPath) -> Path:
    """A copy of the weights and the text files of a Hugging Face folder, see `copied`. Raises UserError as
    `weight_files`."""
    weights = weight_files(model)
    sizes = {name: size for name, size in model.sizes().items() if name in weights or of_model(name)}
    folder, arrived = copied(model, sizes)
    if cut := [name for name, size in sizes.items() if arrived[name].bytes != size]:
        raise RunError(f"{model}: {', '.join(cut)} did not arrive whole", "run it again")
    return folder
