"""`rlx algo`: what there is to train with, from the catalogue alone."""

import difflib
import json
import textwrap
from typing import Any

import typer

from rlx import ui
from rlx.arguments import JSON_OPTION
from rlx.commands.config_schema import WIDTH
from verl_core.config.catalogue import KINDS as KEYS
from verl_core.config.catalogue import Entry, entry, names
from verl_core.config.errors import UserError

KINDS = ("algorithm", "advantage", "policy_loss", "preference_loss", "aggregation", "kl")

app = typer.Typer(
    help="List the algorithms and their parts, show formula, needs and keys.",
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
)


@app.command()
def ls(as_json: bool = JSON_OPTION) -> None:
    """List algorithms, advantages, policy losses, aggregations and KL estimators.

    A star stands behind what this release does not run yet.
    """
    found = {kind: [entry(kind, name) for name in names(kind)] for kind in KINDS}
    if as_json:
        ui.out_json([_plain(e) for entries in found.values() for e in entries])
        return
    for kind, entries in found.items():
        ui.out(kind.upper())
        for e in entries:
            text = f"{e.name + '*' * (not e.built):<30} {e.doc}"
            ui.out(textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent=" " * 33))


@app.command()
def show(
    name: str = typer.Argument(..., metavar="NAME", help="A name that `rlx algo ls` lists."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Show what a name stands for: formula, needs and keys.

    A name that several kinds share, as grpo, is shown for each.
    """
    found = [entry(kind, name) for kind in KINDS if name in names(kind)]
    if not found:
        near = difflib.get_close_matches(name, [n for kind in KINDS for n in names(kind)], n=1)
        did = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"no algorithm or part of one named {name!r}{did}", "`rlx algo ls` lists them")
    if as_json:
        ui.out_json([_plain(e) for e in found])
        return
    for e in found:
        lines = [(e.kind, e.name + (" (comes with a later release)" if not e.built else "")), ("about", e.doc)]
        lines += [("formula", part) for part in _formulas(e)]
        lines.append(("needs", ", ".join(e.needs) or "nothing"))
        presets = _presets(e)
        lines += [("presets", f"{key}={_yaml(value)}") for key, value in presets.items()]
        lines += [("key", key) for key in e.keys if key not in presets]
        lines.append(("chosen by", " or ".join(f"{key}={e.name}" for key in _chosen_by(e))))
        ui.pairs(lines)
        ui.out("")


def _presets(e: Entry) -> dict[str, Any]:
    return e.options if isinstance(e.options, dict) else {}


def _formulas(e: Entry) -> list[str]:
    """Its own, or those of the advantage and the policy loss that an algorithm presets."""
    if e.formula or e.kind != "algorithm":
        return [e.formula]
    presets = _presets(e)
    parts = {"A": "algorithm.adv_estimator", "loss": "actor.policy_loss.loss_mode"}
    return [f"{part} = {entry(KEYS[key], presets[key]).formula}" for part, key in parts.items() if key in presets]


def _chosen_by(e: Entry) -> list[str]:
    return [key for key, kind in KEYS.items() if kind == e.kind]


def _yaml(value: object) -> str:
    """As it is written behind a key on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def _plain(e: Entry) -> dict[str, Any]:
    return {
        "kind": e.kind,
        "name": e.name,
        "doc": e.doc,
        "formula": "; ".join(_formulas(e)),
        "needs": list(e.needs),
        "keys": list(e.keys),
        "presets": _presets(e),
        "chosen_by": _chosen_by(e),
        "built": e.built,
    }
