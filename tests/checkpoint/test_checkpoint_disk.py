"""What the system refuses is told as such, whichever library it was that asked."""

import errno

import pytest

from verl_core.checkpoint import save_huggingface_files
from verl_core.checkpoint.disk import DiskFull, writing_to
from verl_core.config.errors import RunError
from verl_core.models.builtin import build_tokenizer


def test_a_full_disk_under_the_tokenizer_which_has_no_error_of_its_own_for_it(small_disk):
    small_disk.fill(left=8192)
    small_disk.limit(1000)
    says = r"could not write .*actor: (No space left on device|File too large)"
    with pytest.raises(RunError, match=says) as refused, writing_to(small_disk.folder / "actor"):
        save_huggingface_files(small_disk.folder / "actor", tokenizer=build_tokenizer(["1 + 2 = 3"]))
    assert isinstance(refused.value, DiskFull) == small_disk.is_tmpfs


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, ""), DiskFull),
        (OSError(errno.EDQUOT, ""), DiskFull),
        (Exception("Disk quota exceeded (os error 122)"), DiskFull),
        (OSError(errno.EIO, ""), RunError),
        (ValueError("a fault of the program"), ValueError),
    ],
)
def test_other_refusals(tmp_path, error, kind):
    with pytest.raises(kind) as raised, writing_to(tmp_path):
        raise error
    assert type(raised.value) is kind
