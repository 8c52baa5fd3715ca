"""Configurations by name: a profile, a file, a run directory or a project folder, each with settings after it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx import run_records
from rlx.arguments import is_deletion, refuse_empty
from verl_core.config.compose import PROJECT_FILE, Resolved, resolve
from verl_core.config.derived import derived
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.files import user_path
from verl_core.config.typed import leaves, plain


@dataclass
class Source:
    """One configuration as the command line names it."""

    name: str
    overrides: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        return " ".join([self.name, *self.overrides])

    def resolve(self, strict: bool = False) -> Resolved:
        """Raises UserError with everything that is wrong, and for a folder without a configuration.

        What a run's configuration had from whom is read from its origins.json.
        """
        folder = user_path(self.name, "configuration")
        if not folder.is_dir():
            return resolve(self.name, self.overrides, strict=strict)
        file = next((folder / name for name in ("config.yaml", PROJECT_FILE) if (folder / name).is_file()), None)
        if file is None:
            raise UserError(f"{self.name} has neither config.yaml nor {PROJECT_FILE}", "name a run or a project folder")
        resolved = resolve(None, self.overrides, file, strict)
        if recorded := run_records.read_json(folder / "origins.json"):
            resolved.origins |= {
                key: str(recorded[key])
                for key, origin in resolved.origins.items()
                if key in recorded and origin in (str(file), "default")
            }
        return resolved


def values(resolved: Resolved, fill: bool) -> dict[str, tuple[Any, str]]:
    """Every key with its value and where it came from; `fill`: derived values as well, with the rule they follow."""
    config = effective(resolved.config) if fill else resolved.config
    rules = {each.key: f"derived: {each.rule}" for each in derived(resolved.config)} if fill else {}
    return {key: (value, rules.get(key) or resolved.origins[key]) for key, value in leaves(plain(config))}


def split_sources(words: Sequence[str]) -> tuple[list[Source], list[str]]:
    """The configurations named, and the settings before the first of them. A setting belongs to the name before it."""
    sources: list[Source] = []
    before: list[str] = []
    for word in words:
        refuse_empty(word, "PROFILE")
        if "=" in word or word.startswith("+") or is_deletion(word):
            (sources[-1].overrides if sources else before).append(word)
        else:
            sources.append(Source(word))
    return sources, before
