"""Which keys of a configuration name its prompts."""

from verl_core.config.schema import DataConfig, MixtureConfig

VAL_FILES = "data.val_files"


def training_files(data: DataConfig) -> str | list[str] | dict[str, MixtureConfig]:
    """What a run trains on: the sources of data.mixture where it has any, else data.train_files."""
    return data.mixture or data.train_files


def prompt_files(data: DataConfig) -> dict[str, list[str]]:
    """Paths, folders, globs and `builtin:NAME`s by the key that names them; those of validation last."""
    if data.mixture:
        train = {f"data.mixture.{name}.files": source.files for name, source in data.mixture.items()}
    else:
        train = {"data.train_files": data.train_files}
    return {key: as_list(files) for key, files in {**train, VAL_FILES: data.val_files}.items()}


def as_list(files: str | list[str] | None) -> list[str]:
    """One path, a list of them or none, as a list."""
    return [files] if isinstance(files, str) else files or []
