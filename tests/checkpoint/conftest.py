"""A disk that is soon full, and a checkpoint that two ranks wrote."""

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_models import on_ranks, write_run_on_two

MEGABYTE = 1 << 20


class SmallDisk:
    """A folder where `size` bytes fit: a tmpfs where mounting is allowed, else no file outgrows it after `limit`."""

    def __init__(self, folder: Path, size: int):
        self.folder, self.size = folder, size
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
        self.is_tmpfs = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0

    def limit(self, size: int | None = None) -> None:
        """From now on, without a tmpfs, no file of this process or its children can grow beyond `size` bytes."""
        if not self.is_tmpfs:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size or self.size, self._limits[1]))

    def close(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)
        if self.is_tmpfs:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


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
