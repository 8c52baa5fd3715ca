"""The registry: things by kind and name, with what they need and where their code is, imported only when used. Other
packages add entries through the entry-point group `rlx.plugins`; the built-in ones stand in `catalogue.py`."""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from verl_core.config.errors import EnvError, UserError
from verl_core.config.user_code import guarded, import_file

GROUP = "rlx.plugins"
ALGORITHM_FILE = "algorithm file"  # what messages call the file of algorithm.module


@dataclass(frozen=True)
class Entry:
    """One registered thing. `needs` names what must be there ("critic", "group", "reference"); `keys` the configuration
    keys it reads; `options` the keys it presets (algorithms) or a dataclass of its own options."""

    kind: str
    name: str
    where: str | Callable[..., Any] | None = None
    """"module:object" or "FILE.py:object", imported when first used; None for a preset, which is only options."""
    needs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    doc: str = ""
    formula: str = ""
    """Its formula in a line, for `rlx algo show`."""
    options: Any = None
    device: str | None = None
    vendor: str | None = None
    built: bool = True
    """False for a name that plans and dry-runs, and whose code comes with a later release."""


type Key = tuple[str, str, str | None, str | None]
_ENTRIES: dict[Key, Entry] = {}
_DECLARED: set[Key] = set()  # entries of a user's file, read from its text


def register(
    kind: str,
    name: str,
    *,
    where: str | None = None,
    device: str | None = None,
    vendor: str | None = None,
    needs: tuple[str, ...] = (),
    keys: tuple[str, ...] = (),
    doc: str = "",
    formula: str = "",
    options: Any = None,
    built: bool = True,
) -> Callable[[Any], Any]:
    """Registers an implementation: with `where` at once, else as a decorator of the class or function.

    The same name with another `device` or `vendor` is a variant for that hardware. Raises ValueError for a name taken.
    """

    def add(target: Any) -> Any:
        key = (kind, name, device, vendor)
        if key in _DECLARED:  # the file is being imported: what it registers is known
            return target
        if key in _ENTRIES:
            raise ValueError(f"{kind} {name!r} is already registered")
        _ENTRIES[key] = Entry(kind, name, target, needs, keys, doc, formula, options, device, vendor, built)
        return target

    if where is not None or options is not None or not built:
        add(where)
    return add


def declare(entries: Iterable[Entry]) -> None:
    """Adds what a user's file registers (`user_module`) in place of an earlier declaration of the name. Raises
    UserError for a name that is rlx's own or a plug-in's."""
    load_plugins()
    for e in entries:
        key = (e.kind, e.name, e.device, e.vendor)
        if key in _ENTRIES and key not in _DECLARED:
            raise UserError(f"{e.kind} {e.name!r} of {e.where} is taken", "choose another name")
        _ENTRIES[key] = e
        _DECLARED.add(key)


@cache
def load_plugins() -> tuple[str, ...]:
    """Loads the packages of the entry-point group `rlx.plugins`, each of which calls `register`; returns their names.

    Raises EnvError naming a plug-in that does not load.
    """
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    for point in found:
        try:
            point.load()
        except Exception as error:
            raise EnvError(
                f"plug-in {point.name} ({point.value}) does not load: {error}", "repair or remove it"
            ) from error
    return tuple(point.name for point in found)


def names(kind: str, built: bool = False) -> list[str]:
    """Registered names of a kind, in order of registration; `built`: only those whose code is there."""
    load_plugins()
    found = (entry for entry in _ENTRIES.values() if entry.kind == kind and (entry.built or not built))
    return list(dict.fromkeys(entry.name for entry in found))


def entry(kind: str, name: str, device: str | None = None, vendor: str | None = None) -> Entry:
    """The entry for this hardware: (device, vendor), else device, else any. Raises UserError with the known names."""
    load_plugins()
    for key in ((kind, name, device, vendor), (kind, name, device, None), (kind, name, None, None)):
        if key in _ENTRIES:
            return _ENTRIES[key]
    raise UserError(f"no {kind} named {name!r}", f"known: {', '.join(names(kind))}")


def implementation(kind: str, name: str, device: str | None = None, vendor: str | None = None) -> Any:
    """The registered class or function, imported now. Raises UserError for an unknown name."""
    where = entry(kind, name, device, vendor).where
    if not isinstance(where, str):
        return where
    module, _, attribute = where.rpartition(":")
    if module.endswith(".py"):
        found = getattr(import_file(Path(module), ALGORITHM_FILE), attribute)
        return found if isinstance(found, type) else guarded(found, f"{kind} {name!r} of {module}")
    return getattr(importlib.import_module(module), attribute)
