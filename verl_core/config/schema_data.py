"""Configuration of the prompts: files, their mixture and order, lengths."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass
class MixtureConfig:
    """One source of a mixture."""

    files: str | list[str] = field(default_factory=list)
    """Its prompts, in the forms that data.train_files takes."""
    weight: float = 1.0
    """Its share of the prompts, before the weights are divided by their sum (> 0)."""
    max_samples: int = -1
    """Use only this many of its rows, as data.train_max_samples does; -1: all."""


@dataclass
class CurriculumConfig:
    by: str | None = None
    """Column with a number, the easiest first in each epoch; a dot leads into an object, e.g. extra_info.difficulty."""
    drop_solved: int = 0
    """Leave a prompt out once it was solved in this many visits in a row (accuracy, or the reward where the scorer
    tells no accuracy, is 1 in the mean of its answers); 0: never."""
    path: str | None = None
    """Python file with a class that says each epoch's order, in place of `by` and `drop_solved`."""
    name: str = "Curriculum"
    """The class in that file."""


@dataclass
class DataConfig:
    train_files: str | list[str] = "~/data/gsm8k/train.parquet"
    """Prompts to train on: a path, list of paths, folder, glob (.parquet, .jsonl, .json), or `builtin:NAME`."""
    val_files: str | list[str] | None = "~/data/gsm8k/test.parquet"
    """Prompts to validate on, same forms; null: no validation."""
    mixture: dict[str, MixtureConfig] = field(default_factory=dict)
    """Several named sources to train on, in place of train_files, each with its files and its weight."""
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    """The order of the training prompts by what they are and how they were answered, in place of chance."""
    train_max_samples: int = -1
    """Use only this many training rows, after a seeded shuffle when `shuffle`; -1: all."""
    val_max_samples: int = -1
    """Use only the first this many validation rows; -1: all."""
    prompt_key: str = "prompt"
    """Column with the chat messages (list of {role, content}) or a plain string."""
    messages_key: str = "messages"
    """Supervised fine-tuning: column with whole conversations, the assistant's turns included."""
    response_key: str = "extra_info.answer"
    """Supervised fine-tuning, in rows without `messages_key`: where the answer to the prompt stands; a dot leads into
    an object."""
    reward_fn_key: str = "data_source"
    """Column that chooses the scorer."""
    max_prompt_length: int = 512
    """Longest prompt, tokens, after the chat template (>= 1)."""
    max_response_length: int = 512
    """Longest response, tokens (>= 1)."""
    train_batch_size: int = 1024
    """Prompts a step (>= 1)."""
    shuffle: bool = True
    """Shuffle the training prompts each epoch, by seed."""
    seed: int | None = None
    """Seed of the data order, in [0, 2^63); null: trainer.seed."""
    filter_overlong_prompts: bool = False
    """Drop prompts longer than max_prompt_length at loading (the number is logged) instead of `truncation`."""
    truncation: Literal["error", "left", "right", "middle"] = "error"
    """What to do with a prompt that is too long: refuse the file, or keep its right end, left end, or both ends."""
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Extra arguments of the tokenizer's chat template, e.g. enable_thinking."""
