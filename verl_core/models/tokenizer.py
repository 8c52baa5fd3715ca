"""Tokenizers, and the ids that end or fill a sequence: the one place that knows how checkpoints differ here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from transformers import AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from verl_core.config.errors import UserError
from verl_core.config.schema import ModelConfig
from verl_core.models.folder import resolve


def load_tokenizer(model: ModelConfig, path: str | Path | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of model.tokenizer_path, else of `path`, else of model.path, padding on the left.

    A tokenizer without a pad token pads with its end token: nothing reads padding by its id, masks come from lengths.
    Raises UserError when the folder has no tokenizer.
    """
    folder = resolve(model.tokenizer_path or path or model.path, config=False, weights=False)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise UserError(
            f"cannot load a tokenizer from {folder}: {(str(error).strip() or type(error).__name__).splitlines()[0]}",
            hint="set model.tokenizer_path to a folder with tokenizer.json and tokenizer_config.json",
        ) from error
    if not tokenizer("a", add_special_tokens=False)["input_ids"]:  # transformers makes an empty one of no vocabulary
        raise UserError(
            f"the tokenizer in {folder} turns text into nothing: its vocabulary is missing",
            hint="copy tokenizer.json there, or set model.tokenizer_path",
        )
    if model.custom_chat_template is not None:
        tokenizer.chat_template = model.custom_chat_template
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    tokenizer.padding_side = "left"
    return tokenizer


def eos_ids(
    tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None, config: PreTrainedConfig
) -> tuple[int, ...]:
    """Every id that ends an answer: the generation config's (one or a list) and the tokenizer's; the model config's
    only where the generation config names none. Without repeats, in that order; empty when nothing names one."""
    generation = _ids(generation_config.eos_token_id) if generation_config is not None else []
    own = generation or _ids(getattr(config, "eos_token_id", None))
    return tuple(dict.fromkeys([*own, *_ids(tokenizer.eos_token_id)]))


def _ids(value: int | Iterable[int] | None) -> list[int]:
    if value is None:
        return []
    return [int(value)] if isinstance(value, int) else [int(i) for i in value]
