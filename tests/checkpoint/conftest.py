"""A disk that is soon full, and a checkpoint that two ranks wrote."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_models import on_ranks, write_run_on_two

from tests.support.small_disk import SmallDisk

MEGABYTE = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = SmallDisk(folder, MEGABYTE)
    yield disk
    disk.close()


@pytest.fixture(scope="session")
def two_ranks_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of run directories written by two ranks, see `write_run_on_two`. Tests copy what they change."""
    root = tmp_path_factory.mktemp("two-ranks")
    on_ranks(2, write_run_on_two, root)
    return root
