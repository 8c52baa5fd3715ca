"""The Python that programs run in: this one's base interpreter and standard library, and nothing that is installed.

What has to be visible of the machine for it: the system's shared libraries, and the interpreter's own folder, which
appears as /python where it is not the system's.
"""

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_SYSTEM = Path("/usr")
_LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32")
_TOP = ("/lib", "/lib32", "/lib64", "/libx32")  # links into /usr on most systems, folders on some


@dataclass(frozen=True)
class Interpreter:
    """`executable`: its path inside; `folders`: (outside, inside), to be seen and not written; `links`: (target, link);
    `libraries`: folders that the loader has to search besides the system's."""

    executable: str
    folders: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    libraries: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """All of a program's environment. The hash seed is fixed, so that the order of a set repeats; one arena of the
        allocator, because each would reserve 64 MiB of address space for a thread."""
        search = {"LD_LIBRARY_PATH": ":".join(self.libraries)} if self.libraries else {}
        return {"HOME": "/tmp", "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "1", "PYTHONHASHSEED": "0", **search}


FLAGS = ("-s", "-P", "-S", "-B", "-X", "utf8")
"""No user or site packages, nothing imported from the working folder, no byte code written, UTF-8."""


@cache
def interpreter() -> Interpreter:
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    prefix = executable.parent.parent
    seen = [path for path in map(Path, (*_LIBRARIES, *_TOP, "/etc/ld.so.cache")) if path.exists()]
    folders = [(str(path), str(path)) for path in seen if not path.is_symlink()]
    links = tuple((str(path.readlink()), str(path)) for path in seen if path.is_symlink())
    if prefix.is_relative_to(_SYSTEM):
        inside = prefix
        folders += [(str(prefix / "lib"), str(prefix / "lib"))] if prefix != _SYSTEM else []
    else:
        inside = Path("/python")
        folders += [(str(prefix / "lib"), "/python/lib")]
    path = str(inside / "bin" / executable.name)
    folders.append((str(executable), path))
    return Interpreter(path, tuple(folders), links, () if prefix == _SYSTEM else (str(inside / "lib"),))
