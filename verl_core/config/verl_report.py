"""What became of each word of a veRL launch."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Item:
    """One key of a script, or one thing about it."""

    key: str
    """veRL's key as the script has it; rlx's for a default."""
    value: Any = None
    ours: str = ""
    """rlx's key, where it is another."""
    text: str = ""
    """What became of it, or why nothing did."""


@dataclass
class Report:
    script: str
    line: int
    """Where the launch that was read stands."""
    module: str
    extends: str | None = None
    """The profile that agrees best; None: no profile is nearer than rlx's defaults."""
    carried: list[Item] = field(default_factory=list)
    """The same key and value here."""
    renamed: list[Item] = field(default_factory=list)
    """Another key or another value here."""
    always: list[Item] = field(default_factory=list)
    """Asks for what rlx does anyway."""
    idle: list[Item] = field(default_factory=list)
    """Without effect under the script's own options, so left out."""
    without: list[Item] = field(default_factory=list)
    """Without a counterpart, and what takes its place."""
    undecided: list[Item] = field(default_factory=list)
    """Depends on what the script does not say."""
    defaults: list[Item] = field(default_factory=list)
    """Not in the script: veRL's defaults that are not rlx's."""
    environment: list[Item] = field(default_factory=list)
    """Environment variables the script sets; rlx takes them from where it is started."""
    notes: list[str] = field(default_factory=list)
    """Parts of the script that were not followed, with their line, and what was taken to be so."""
    breaks: list[str] = field(default_factory=list)
    """What `rlx config check` will refuse in the file."""
    later: list[str] = field(default_factory=list)
    """What the file asks for that this release plans, but does not run."""

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)
