"""Fixtures of the command's tests."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import command_variables


@pytest.fixture
def envs(tmp_path: Path) -> dict[str, str | None]:
    """Variables of a command that makes its environments in a folder of the test."""
    return {"RLX_ENVS": str(tmp_path / "envs"), "RLX_PYTHON": None}


@pytest.fixture(scope="session")
def compiled_plot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete environment of the extra `plot`, byte code compiled, made once."""
    variables = command_variables({"RLX_ENVS": str(tmp_path_factory.mktemp("compiled")), "RLX_PYTHON": None})
    sync = [sys.executable, "-m", "rlx", "env", "sync", "--extra", "plot"]
    done = subprocess.run(sync, env=variables, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


@pytest.fixture
def seeded(envs: dict[str, str | None], compiled_plot: Path) -> dict[str, str | None]:
    """As `envs`, and there is an environment already, `a-seed`, that others take byte code from."""
    folder = Path(str(envs["RLX_ENVS"]))
    folder.mkdir()
    (folder / "a-seed").symlink_to(compiled_plot)
    return envs
