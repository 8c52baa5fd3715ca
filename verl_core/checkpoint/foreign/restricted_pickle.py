"""Reads a pickle without running it: every name in it must be one that the reader knows, and stands for a plain record.

A pickle is a program; its GLOBAL, STACK_GLOBAL, INST and EXT instructions fetch objects by name and REDUCE, OBJ, NEWOBJ
and BUILD call them (https://docs.python.org/3/library/pickletools.html). Here all of them get sealed records only, so
the worst that a hostile file can do is to be refused.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NoReturn, cast

from verl_core.config.errors import UserError

Allowed = Mapping[tuple[str, str], Any]
"""(module, name) as the pickle spells it -> what it gets: a `Record` class, a `Function`, or an immutable value."""


class _Sealed(type):
    """A class that a pickle can call, and not change."""

    def __setattr__(cls, name: str, value: object) -> NoReturn:
        raise pickle.UnpicklingError(f"sets {name} of a class")


class Record(metaclass=_Sealed):
    """What a class in a pickle becomes: the arguments it was made with and the state it was given, uninterpreted."""

    __slots__ = ("arguments", "state")
    arguments: tuple[Any, ...]
    state: dict[str, Any]

    def __new__(cls, *arguments: Any) -> Record:
        record = object.__new__(cls)
        object.__setattr__(record, "arguments", arguments)
        object.__setattr__(record, "state", {})
        return record

    def __init__(self, *arguments: Any):
        pass

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise pickle.UnpicklingError(f"sets {name} of a {type(self).__name__}")

    def __setstate__(self, state: object) -> None:
        """Takes the instance's dictionary; of a class with slots pickle gives (dictionary or None, slots). A class may
        have a state of its own kind: that is kept under the empty name."""
        match state:
            case dict():
                self.state.update(state)
            case (dict() | None as own, dict() as slots):
                self.state.update({**(own or {}), **slots})
            case _:
                self.state[""] = state

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.arguments}{self.state}"


class PlainDict(dict[Any, Any], metaclass=_Sealed):
    """An ordered dictionary; the attributes that torch hangs on a state dict are dropped."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        pass


class Function:
    """What a function in a pickle becomes: one of ours that builds a record."""

    __slots__ = ("_build",)
    _build: Callable[..., Any]

    def __init__(self, build: Callable[..., Any]):
        object.__setattr__(self, "_build", build)

    def __call__(self, *arguments: Any) -> Any:
        return self._build(*arguments)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise pickle.UnpicklingError(f"sets {name} of a function")


def record(name: str) -> type[Record]:
    """A class of records with a name of its own."""
    return cast(type[Record], _Sealed(name, (Record,), {"__slots__": ()}))


def load(
    file: BinaryIO | bytes, allowed: Allowed, where: str, persistent: Callable[[object], Any] | None = None
) -> Any:
    """The records in a pickle.

    Args:
        file: the pickle.
        allowed: what its names stand for.
        where: file name for messages.
        persistent: gives the object for a persistent id, raising pickle.UnpicklingError for one of odd form.

    Raises UserError for a name that is not allowed, and for what is no whole pickle.
    """
    copyreg.clear_extension_cache()  # else EXT gives what an earlier reader in this process was given, unasked
    try:
        return _Unpickler(io.BytesIO(file) if isinstance(file, bytes) else file, allowed, persistent).load()
    except _Refused as error:
        raise UserError(f"{where} is refused: {error}", "merge only files of which you know the writer") from None
    except Exception as error:  # hostile bytes raise any type
        raise UserError(f"{where} is not a pickle that can be read: {type(error).__name__}: {error}") from error


class _Refused(pickle.UnpicklingError):
    pass


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, allowed: Allowed, persistent: Callable[[object], Any] | None):
        super().__init__(file)
        self._allowed, self._persistent = allowed, persistent

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._allowed[module, name]
        except KeyError:
            raise _Refused(f"it calls for {module}.{name}, which no such checkpoint contains") from None

    def persistent_load(self, pid: object) -> Any:
        if self._persistent is None:
            raise _Refused(f"it has a persistent id {str(pid)[:80]!r}, which no such file contains")
        return self._persistent(pid)
