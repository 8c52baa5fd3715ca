"""docs/commands is what `--help` says."""

from rlx.docs import FOLDER, pages


def test_command_pages_are_current():
    on_disk = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert on_disk == pages(), "stale: run `python -m rlx.docs` in the checkout"
