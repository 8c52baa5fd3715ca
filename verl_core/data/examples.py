"""Data sets whose rows are answers to learn from, not prompts to answer: demonstrations, preference pairs."""

from __future__ import annotations

from typing import Protocol

from verl_core.batch import Trajectory
from verl_core.data.dataset import PromptRow


class ExampleDataset(Protocol):
    """A `PromptDataset` (prompts, order, hashes) that also has the answers."""

    def group(self, row: PromptRow) -> list[Trajectory]:
        """The row's answers: one demonstration, or the chosen and the rejected one."""
        ...
