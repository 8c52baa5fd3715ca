"""A disk that is soon full."""

import os
import resource
import shutil
import subprocess
from pathlib import Path


class SmallDisk:
    """A folder where `size` bytes fit: a tmpfs, mounted here or, where that is not allowed, in a namespace of its own.
    Where neither is, no file of this process or its children outgrows what `limit` says."""

    def __init__(self, folder: Path, size: int, mode: str = "rw"):
        self.folder, self.size = folder, size
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._holder: subprocess.Popen[str] | None = None  # of the namespace
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size},{mode}", "none", str(folder)]
        self.is_tmpfs = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
        if not self.is_tmpfs and shutil.which("unshare"):
            self._mount_apart(mount)

    def _mount_apart(self, mount: list[str]) -> None:
        """/proc leads into the namespace from outside, as long as the process lives that holds it."""
        hold = ["unshare", "--map-root-user", "--mount", "sh", "-c", '"$@" && echo mounted && exec sleep 600', "sh"]
        self._holder = subprocess.Popen(
            [*hold, *mount], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline():
            self.folder, self.is_tmpfs = Path(f"/proc/{self._holder.pid}/root{self.folder}"), True

    def fill(self, left: int) -> None:
        """Takes all but `left` bytes; `free` gives them back."""
        stat = os.statvfs(self.folder)
        with (self.folder / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, stat.f_bavail * stat.f_frsize - left)

    def free(self) -> None:
        (self.folder / "filler").unlink()

    def limit(self, size: int | None = None) -> None:
        """From now on, without a tmpfs, no file of this process or its children can grow beyond `size` bytes."""
        if not self.is_tmpfs:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size or self.size, self._limits[1]))

    def close(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()
        elif self.is_tmpfs:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)
