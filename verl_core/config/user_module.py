"""A user's own algorithms: `algorithm.module=FILE.py`, which registers them by `register(...)` as the catalogue does.

The command has no torch, so what the file registers is read from its text: `register` at the top level, as a decorator
or a call, with literal arguments. The file is imported where its code is used.
"""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from verl_core.config.algorithms import POLICY_FLOW, PRESET
from verl_core.config.errors import UserError
from verl_core.config.registry import Entry, declare, entry

KINDS = ("algorithm", "advantage", "policy_loss")
HINT = "see docs/algorithms.md, Your own"


def declare_module(path: str) -> list[Entry]:
    """Adds what the file registers to the catalogue, in place of what it registered before. Nothing is imported.

    Raises UserError for a file that cannot be read or registers nothing, other kinds than algorithm, advantage and
    policy_loss, arguments that are no literals, and names that are taken.
    """
    file = Path(path).expanduser().resolve()
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"algorithm.module={path} cannot be read: {error}", "name a Python file") from None
    except SyntaxError as error:
        raise UserError(f"algorithm.module={path}, line {error.lineno}: {error.msg}", f"try `python {path}`") from None
    found = list(_registered(tree, file))
    if not found:
        raise UserError(f"algorithm.module={path} registers nothing", HINT)
    declare(e for e in found if e.kind != "algorithm")
    declare(_whole(e, file) for e in found if e.kind == "algorithm")  # which may name an estimator of the file
    return found


def _registered(tree: ast.Module, file: Path) -> Iterator[Entry]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for call in filter(_is_register, node.decorator_list):
                yield _entry(call, file, f"{file}:{node.name}")
        elif isinstance(node, ast.Expr) and _is_register(node.value):
            yield _entry(node.value, file, None)


def _is_register(node: ast.expr) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return name == "register"


def _entry(call: ast.expr, file: Path, where: str | None) -> Entry:
    assert isinstance(call, ast.Call)
    place = f"{file.name}, line {call.lineno}"
    try:
        words = [ast.literal_eval(word) for word in call.args]
        named: dict[str, Any] = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        kind, name = words
    except ValueError:
        raise UserError(f"{place}: register takes a kind and a name, and literals for the rest", HINT) from None
    if kind not in KINDS:
        raise UserError(f"{place}: register({kind!r}, ...): a module brings {', '.join(KINDS)}", HINT)
    if where is None and kind != "algorithm":
        raise UserError(f"{place}: register({kind!r}, {name!r}) decorates a function, or nothing computes it", HINT)
    for option in named.keys() - {"needs", "keys", "doc", "formula", "options"}:
        raise UserError(f"{place}: register has no {option}= for a module", HINT)
    for option in {"needs", "keys"} & named.keys():
        if not isinstance(named[option], tuple | list):
            raise UserError(f"{place}: {option}= takes a tuple of texts, not {named[option]!r}", HINT)
        named[option] = tuple(named[option])
    return Entry(kind, name, where, **named)


def _whole(algorithm: Entry, file: Path) -> Entry:
    """A preset of the file with what every preset sets, its estimator's needs, and the flow of policy gradients unless
    it decorates one of its own."""
    changes = algorithm.options or {}
    estimator = changes.get("algorithm.adv_estimator")
    if estimator is None:
        raise UserError(f"{file.name}: algorithm {algorithm.name!r} names no algorithm.adv_estimator in options", HINT)
    options = {**PRESET, **changes}
    needs = (*entry("advantage", estimator).needs, *algorithm.needs)
    where = algorithm.where or POLICY_FLOW
    return replace(algorithm, where=where, options=options, keys=(*options, *algorithm.keys), needs=needs)
