"""Bytes that go to the disk while later ones are written."""

import errno
import os

import pytest

from verl_core.checkpoint import folders


def test_what_the_disk_says_meanwhile_is_raised_and_all_bytes_arrive(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_AHEAD_BYTES", 8)
    asked, plain = [], os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: asked.append(descriptor) or plain(descriptor))
    with folders.writing(tmp_path / "file") as file:
        for value in range(100):
            file.write(bytes([value]) * 4)
    assert asked and (tmp_path / "file").read_bytes() == b"".join(bytes([value]) * 4 for value in range(100))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(OSError, match="no room"), folders.writing(tmp_path / "other") as file:
        file.write(bytes(16))
